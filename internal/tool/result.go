package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxShownKeys bounds how many members of an object a message lists.
const maxShownKeys = 20

// pointed is the part of a body that a JSON pointer names, as a model may see it:
// a string without its quotes, all else as the tool wrote it.
func (b body) pointed(pointer string) (string, error) {
	if b.cut {
		return "", fmt.Errorf("its answer is too long to be read whole, so %s in it cannot be found", pointer)
	}
	raw := bytes.TrimPrefix(b.bytes, []byte("\uFEFF"))
	if !json.Valid(raw) {
		return "", fmt.Errorf("its answer is not JSON, so there is nothing at %s", pointer)
	}
	value, err := lookup(bytes.TrimSpace(raw), pointer)
	if err != nil {
		return "", err
	}
	if value[0] != '"' {
		return cleaned(value).marked(), nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return "", fmt.Errorf("the string at %s cannot be read: %w", pointer, err)
	}
	c := cleaned([]byte(text))
	// A lone surrogate, or bytes that are not UTF-8, became a mark when the string was read.
	c.spoilt += strings.Count(text, string(utf8.RuneError)) - strings.Count(string(value), string(utf8.RuneError)) - countEscapedMarks(value)
	return c.marked(), nil
}

// countEscapedMarks counts the replacement characters that the tool itself wrote
// as an escape.
func countEscapedMarks(value []byte) int {
	return strings.Count(strings.ToLower(string(value)), `\ufffd`)
}

// lookup walks a JSON pointer through valid JSON. The error says what is there instead.
func lookup(raw json.RawMessage, pointer string) (json.RawMessage, error) {
	tokens, err := pointerTokens(pointer)
	if err != nil {
		return nil, err
	}
	at := ""
	for _, token := range tokens {
		next, ok := child(raw, token)
		if !ok {
			return nil, fmt.Errorf("its answer has nothing at %s: %s is %s", pointer, place(at), inventory(raw))
		}
		raw, at = bytes.TrimSpace(next), at+"/"+escapeToken(token)
	}
	return raw, nil
}

// child is a member or an item of a JSON value.
func child(raw json.RawMessage, token string) (json.RawMessage, bool) {
	switch kindOf(raw) {
	case "object":
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			return nil, false
		}
		member, ok := members[token]
		return member, ok
	case "array":
		var items []json.RawMessage
		i, err := strconv.ParseUint(token, 10, 31)
		if err != nil || json.Unmarshal(raw, &items) != nil || i >= uint64(len(items)) || strconv.FormatUint(i, 10) != token {
			return nil, false
		}
		return items[i], true
	}
	return nil, false
}

// inventory says what a value holds.
func inventory(raw json.RawMessage) string {
	switch kind := kindOf(raw); kind {
	case "object":
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil || len(members) == 0 {
			return "an empty object"
		}
		names := slices.Sorted(maps.Keys(members))
		shown := make([]string, 0, maxShownKeys)
		for _, name := range names[:min(len(names), maxShownKeys)] {
			shown = append(shown, compact(name))
		}
		if more := len(names) - len(shown); more > 0 {
			shown = append(shown, fmt.Sprintf("and %d more", more))
		}
		return "an object with " + strings.Join(shown, ", ")
	case "array":
		var items []json.RawMessage
		_ = json.Unmarshal(raw, &items) // valid JSON, so this cannot fail
		return fmt.Sprintf("an array of %d items", len(items))
	case "null":
		return kind
	default:
		return "a " + kind
	}
}

// place names where a walk stands.
func place(pointer string) string {
	if pointer == "" {
		return "the whole answer"
	}
	return pointer
}

// pointerTokens splits a JSON pointer (RFC 6901).
func pointerTokens(pointer string) ([]string, error) {
	if pointer == "" {
		return nil, nil
	}
	if pointer[0] != '/' {
		return nil, errors.New(`is no JSON pointer: it must begin with "/", as in "/data/0/total"`)
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, token := range tokens {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(token), "~") {
			return nil, errors.New(`is no JSON pointer: "~" is written "~0", and "/" in a name "~1"`)
		}
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return tokens, nil
}

func escapeToken(token string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(token)
}
