package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// layOut shows arguments to a person who decides about them. Each member has a line
// of its own, so that no white space pushes one out of sight; no token is left out
// or changed, and what a terminal would hide is written as its escape. Arguments that
// are no JSON are shown as they are.
func layOut(args string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(args), "", "  ") != nil {
		return visible(args)
	}
	return visible(b.String())
}

// visible writes as JSON escapes what a terminal would act upon or not show, such as
// control characters and those that change the direction of writing. In valid JSON
// they stand in strings only, where the escape means the same.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// change is a place where two JSON documents differ. Empty: it has nothing there.
type change struct{ pointer, before, after string }

// changes lists where two JSON documents differ, by JSON pointer.
func changes(before, after string) ([]change, error) {
	old, err := leaves(before)
	if err != nil {
		return nil, err
	}
	edited, err := leaves(after)
	if err != nil {
		return nil, err
	}
	pointers := maps.Clone(old)
	maps.Copy(pointers, edited)
	var found []change
	for _, pointer := range slices.Sorted(maps.Keys(pointers)) {
		if old[pointer] != edited[pointer] {
			found = append(found, change{pointer, old[pointer], edited[pointer]})
		}
	}
	return found, nil
}

// leaves are the values of a document that hold no others, by JSON pointer. Numbers
// keep their digits.
func leaves(document string) (map[string]string, error) {
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("compare arguments: %w", err)
	}
	found := map[string]string{}
	return found, addLeaves(found, "", value)
}

func addLeaves(found map[string]string, pointer string, value any) error {
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			if err := addLeaves(found, pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(key), member); err != nil {
				return err
			}
		}
		if len(v) > 0 {
			return nil
		}
	case []any:
		for i, element := range v {
			if err := addLeaves(found, pointer+"/"+strconv.Itoa(i), element); err != nil {
				return err
			}
		}
		if len(v) > 0 {
			return nil
		}
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("compare arguments: %w", err)
	}
	found[pointer] = strings.TrimSpace(b.String())
	return nil
}

// showChanges writes what is other in the second document than in the first.
func showChanges(w io.Writer, title, before, after string) error {
	found, err := changes(before, after)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s\n", title)
	if len(found) == 0 {
		fmt.Fprintln(w, "  none")
	}
	for _, c := range found {
		fmt.Fprintf(w, "  %s\n", visible(c.pointer))
		if c.before != "" {
			fmt.Fprintf(w, "    - %s\n", visible(c.before))
		}
		if c.after != "" {
			fmt.Fprintf(w, "    + %s\n", visible(c.after))
		}
	}
	return nil
}
