package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// edit replaces a text in a file.
type edit struct{ file, old, new string }

// parsePatch reads a unified diff, before which a paragraph says what it breaks. The
// line numbers are ignored, since code moves: what tells a place is its text.
func parsePatch(text string) (says string, edits []edit) {
	says, diff, _ := strings.Cut(text, "\n\n")
	var file string
	var e edit
	end := func() {
		if e.old != e.new {
			edits = append(edits, e)
		}
		e = edit{file: file}
	}
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ b/"):
			end()
			file = strings.TrimSpace(line[len("+++ b/"):])
		case strings.HasPrefix(line, "@@"):
			end()
		case strings.HasPrefix(line, "-"):
			e.old += line[1:]
		case strings.HasPrefix(line, "+"):
			e.new += line[1:]
		default:
			e.old, e.new = e.old+line[1:], e.new+line[1:]
		}
	}
	end()
	return strings.Join(strings.Fields(says), " "), edits
}

// apply returns the text of each file that the edits change. Each must find its place,
// and one only.
func apply(root string, edits []edit) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range edits {
		text, ok := changed[e.file]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, fmt.Errorf("apply a patch: %w", err)
			}
			text = string(read)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("apply a patch: %s holds this %d times, not once; adapt the patch to the code:\n%s", e.file, n, e.old)
		}
		changed[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return changed, nil
}

// overlay writes the patched files into dir and returns the file that tells go of them.
func (b bug) overlay(dir string) (string, error) {
	changed, err := apply(".", b.edits)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, text := range changed {
		from, err := filepath.Abs(file)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", file, err)
		}
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write the overlay: %w", err)
		}
		replace[from] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}
