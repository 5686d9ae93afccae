package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkMembers refuses what a document names and a message does not have, with the
// names that come closest: protojson only says that a name is unknown. What is wrong
// otherwise is left to protojson.
func checkMembers(m protoreflect.MessageDescriptor, path string, document any) error {
	members, ok := document.(map[string]any)
	if !ok || strings.HasPrefix(string(m.FullName()), "google.protobuf.") {
		return nil
	}
	fields := m.Fields()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		field := fields.ByName(protoreflect.Name(name))
		if field == nil {
			field = fields.ByJSONName(name)
		}
		if field == nil {
			return fmt.Errorf("%s%s: there is no such member; the closest: %s", path, name, strings.Join(closest(name, fieldNames(fields)), ", "))
		}
		if err := checkMember(field, path+name, members[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkMember(field protoreflect.FieldDescriptor, path string, value any) error {
	switch {
	case field.IsMap():
		entries, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			if err := checkMember(field.MapValue(), fmt.Sprintf("%s[%q]", path, key), entries[key]); err != nil {
				return err
			}
		}
	case field.IsList():
		list, _ := value.([]any)
		for i, element := range list {
			if err := checkValue(field, fmt.Sprintf("%s[%d]", path, i), element); err != nil {
				return err
			}
		}
	default:
		return checkValue(field, path, value)
	}
	return nil
}

func checkValue(field protoreflect.FieldDescriptor, path string, value any) error {
	if message := field.Message(); message != nil {
		return checkMembers(message, path+".", value)
	}
	word, isText := value.(string)
	if enum := field.Enum(); enum != nil && isText && enum.Values().ByName(protoreflect.Name(word)) == nil {
		var names []string
		for i := 1; i < enum.Values().Len(); i++ {
			names = append(names, string(enum.Values().Get(i).Name()))
		}
		return fmt.Errorf("%s: %q is none of %s", path, word, strings.Join(names, ", "))
	}
	return nil
}

func fieldNames(fields protoreflect.FieldDescriptors) []string {
	var names []string
	for i := range fields.Len() {
		names = append(names, string(fields.Get(i).Name()))
	}
	return names
}

// closest are the three names that take the fewest edits.
func closest(name string, names []string) []string {
	away := make(map[string]int, len(names))
	for _, n := range names {
		away[n] = edits(name, n)
	}
	names = slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return cmp.Compare(away[a], away[b]) })
	return names[:min(3, len(names))]
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
