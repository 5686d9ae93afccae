// Command genbook makes loopd's price book out of public price data and prints it:
//
//	go run ./internal/tools/genbook genai-prices.json catwalk-*.json > internal/pricing/book.json
//
// The first file is prices/data.json of pydantic/genai-prices, whose prices and
// rules it copies as they are. The others are provider files of
// charmbracelet/catwalk, which lend a context window to models that have none
// and say which models read images. What both lack or have wrong is in
// curated.json, each row with its source. When the data is renewed, the two
// commits and the date below are to be renewed with it.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	version = "genai-prices@47df840"
	date    = "2026-08-21" // of both commits
	origin  = "pydantic/genai-prices, MIT licence, commit 47df840, cut to the providers and fields that loopd reads; " +
		"what it lacks is from charmbracelet/catwalk, MIT licence, commit 64dad50, and from internal/tools/genbook/curated.json. USD per million tokens."
)

//go:embed curated.json
var curatedRows []byte

// provider is one list of models, in the source as in the book.
type provider struct {
	ID     string  `json:"id"`
	Models []model `json:"models"`
}

type model struct {
	ID         string          `json:"id"`
	Match      json.RawMessage `json:"match"`
	Window     int64           `json:"context_window,omitempty"`
	MaxOutput  int64           `json:"max_output,omitempty"`
	Reads      []string        `json:"reads,omitempty"`
	Structured bool            `json:"structured,omitempty"`
	Prices     json.RawMessage `json:"prices"`
}

// chosen is a provider of the book.
type chosen struct {
	name     string // in references
	id       string // in genai-prices
	aliases  []string
	fallback []string // whose prices hold where it has none of its own, as genai-prices has it
	models   []model
}

// providers are those of the book, by name. Where genai-prices calls a provider
// otherwise than its users do, the users' word is the name; both work.
func providers() []chosen {
	return []chosen{
		{name: "anthropic", id: "anthropic"},
		{name: "azure", id: "azure", fallback: []string{"openai", "anthropic"}},
		{name: "bedrock", id: "aws", aliases: []string{"aws", "aws-bedrock"}},
		{name: "cerebras", id: "cerebras"},
		{name: "deepseek", id: "deepseek"},
		{name: "fireworks", id: "fireworks"},
		{name: "gemini", id: "google", aliases: []string{"google", "vertex"}, fallback: []string{"anthropic"}},
		{name: "groq", id: "groq"},
		{name: "huggingface-together", id: "huggingface_together", aliases: []string{"huggingface_together"}},
		{name: "mistral", id: "mistral"},
		{name: "moonshot", id: "moonshotai", aliases: []string{"moonshotai"}},
		{name: "openai", id: "openai"},
		{name: "openrouter", id: "openrouter"},
		{name: "together", id: "together"},
		{name: "xai", id: "x-ai", aliases: []string{"x-ai"}},
		{name: "zai", id: "zhipuai", aliases: []string{"zhipuai", "z-ai"}},
	}
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

// run converts the files. Each addition fills in what those before it left open,
// save curated rows, which may also correct.
func run(out io.Writer, prices string, catwalk []string) error {
	book := providers()
	if err := readPrices(prices, book); err != nil {
		return err
	}
	if err := correct(book, curatedRows); err != nil {
		return err
	}
	for _, path := range catwalk {
		if err := addCatwalk(path, book); err != nil {
			return err
		}
	}
	lend(book)
	return write(out, book)
}

// readPrices fills in the models of genai-prices.
func readPrices(path string, book []chosen) error {
	var sources []provider
	if err := readJSON(path, &sources); err != nil {
		return err
	}
	for i := range book {
		at := slices.IndexFunc(sources, func(p provider) bool { return p.ID == book[i].id })
		if at < 0 {
			return fmt.Errorf("%s: has no provider %q", path, book[i].id)
		}
		book[i].models = sources[at].Models
		for j := range book[i].models {
			m := &book[i].models[j]
			m.Prices = noise.ReplaceAllFunc(m.Prices, rounded)
		}
	}
	return nil
}

// noise is what floating point left behind a price, as in 0.18000000000000002.
var noise = regexp.MustCompile(`\d\.\d{13,}`)

// rounded is a price to the 12 digits that loopd counts money in.
func rounded(number []byte) []byte {
	v, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		return number
	}
	text := strconv.FormatFloat(v, 'f', 12, 64)
	return []byte(strings.TrimRight(text, "0"))
}

// addCatwalk adds what one catwalk file knows. Its default_max_tokens is not
// taken: it is a default, and for many models below what they can write.
func addCatwalk(path string, book []chosen) error {
	var list struct {
		ID     string `json:"id"`
		Models []struct {
			ID     string `json:"id"`
			Window int64  `json:"context_window"`
			Images bool   `json:"supports_attachments"`
		} `json:"models"`
	}
	if err := readJSON(path, &list); err != nil {
		return err
	}
	for _, known := range list.Models {
		m := find(book, list.ID, known.ID)
		if m == nil {
			continue
		}
		if m.Window == 0 {
			m.Window = known.Window
		}
		if known.Images && len(m.Reads) == 0 {
			m.Reads = []string{"image"}
		}
	}
	return nil
}

// find is the model of a provider with that id, or nil.
func find(book []chosen, name, id string) *model {
	for i := range book {
		if book[i].name != name {
			continue
		}
		if at := slices.IndexFunc(book[i].models, func(m model) bool { return m.ID == id }); at >= 0 {
			return &book[i].models[at]
		}
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
