// Command dashboards writes loopd's Grafana dashboards:
//
//	go run -C internal/tools/dashboards . ../../../deploy/grafana/dashboards
//
// See README.md for why it is a module of its own.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

// write writes one file for each board.
func write(dir string) error {
	var errs []error
	for _, b := range boards() {
		text, err := encode(b)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, b.id+".json"), text, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func encode(b board) ([]byte, error) {
	built, err := build(b)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", b.id, err)
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(built); err != nil {
		return nil, fmt.Errorf("encode %s: %w", b.id, err)
	}
	return text.Bytes(), nil
}
