// Command genbook makes loopd's price book out of public price data and prints it:
//
//	go run ./internal/tools/genbook genai-prices.json catwalk-*.json > internal/pricing/book.json
//
// The first file is prices/data.json of pydantic/genai-prices, whose prices and
// rules it copies as they are; the others are provider files of
// charmbracelet/catwalk, which lend a context window to models that have none.
// When the data is renewed, the two commits below are to be renewed with it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

const (
	version = "genai-prices@47df840"
	origin  = "pydantic/genai-prices, MIT licence, commit 47df840 of 2026-08-21, cut to seven providers and to the fields that loopd reads; " +
		"context windows it lacks are from charmbracelet/catwalk, MIT licence, commit 64dad50 of 2026-08-21. USD per million tokens."
)

// provider is one list of models, in the source as in the book.
type provider struct {
	ID     string  `json:"id,omitempty"`
	Name   string  `json:"provider"`
	Models []model `json:"models"`
}

type model struct {
	ID     string          `json:"id"`
	Match  json.RawMessage `json:"match"`
	Prices json.RawMessage `json:"prices"`
	Window int64           `json:"context_window,omitempty"`
}

type book struct {
	Version   string     `json:"version"`
	Source    string     `json:"source"`
	Providers []provider `json:"providers"`
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: genbook genai-prices.json [catwalk-provider.json ...] > book.json")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "genbook:", err)
		os.Exit(1)
	}
}

// run converts the files.
func run(out io.Writer, prices string, windowFiles []string) error {
	windows := map[string]int64{}
	for _, path := range windowFiles {
		if err := readWindows(path, windows); err != nil {
			return err
		}
	}
	var sources []provider
	if err := readJSON(prices, &sources); err != nil {
		return err
	}
	b := book{Version: version, Source: origin}
	for _, name := range []string{"anthropic", "deepseek", "google", "groq", "mistral", "openai", "xai"} {
		id := name
		if name == "xai" {
			id = "x-ai" // as genai-prices writes it
		}
		i := slices.IndexFunc(sources, func(p provider) bool { return p.ID == id })
		if i < 0 {
			return fmt.Errorf("%s: has no provider %q", prices, id)
		}
		p := provider{Name: name, Models: sources[i].Models}
		for j := range p.Models {
			if m := &p.Models[j]; m.Window == 0 {
				m.Window = windows[name+"/"+m.ID]
			}
		}
		b.Providers = append(b.Providers, p)
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(b)
}

// readWindows adds the context windows of one catwalk file.
func readWindows(path string, windows map[string]int64) error {
	var list struct {
		ID     string  `json:"id"`
		Models []model `json:"models"`
	}
	if err := readJSON(path, &list); err != nil {
		return err
	}
	for _, m := range list.Models {
		windows[list.ID+"/"+m.ID] = m.Window
	}
	return nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read price data: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}
