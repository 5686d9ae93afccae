package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is a book of two resellers and two vendors.
func sample() []chosen {
	row := func(id string, window int64, prices string) model {
		return model{ID: id, Window: window, Prices: json.RawMessage(prices)}
	}
	return []chosen{
		{name: "anthropic", models: []model{row("claude-3-5-haiku-latest", 200_000, "{}"), row("claude-opus-4-6", 1_000_000, "{}")}},
		{name: "bedrock", models: []model{row("regional.anthropic.claude-3-5-haiku-20241022-v1:0", 0, "{}"), row("global.anthropic.claude-opus-4-6-v1:0", 0, "{}"), row("amazon.nova-lite-v1:0", 0, "{}")}},
		{name: "openrouter", models: []model{row("x-ai/grok-4", 0, `{"input_mtok":3}`), row("x-ai/grok-5", 0, `{"input_mtok":{"base":3,"tiers":[{"start": 9, "price": 4}]}}`)}},
		{name: "xai", models: []model{
			row("grok-4", 256_000, `{"input_mtok":{"base":3,"tiers":[{"start": 127999, "price": 6}]}}`),
			row("grok-5", 256_000, `{"input_mtok":{"base":3,"tiers":[{"start": 127999, "price": 6}]}}`),
		}},
	}
}

func TestResellersAreLentWindows(t *testing.T) {
	t.Parallel()
	book, got := sample(), map[string]int64{}
	lend(book)
	for _, p := range book[1:3] {
		for _, m := range p.models {
			got[m.ID] = m.Window
		}
	}
	if diff := cmp.Diff(map[string]int64{
		"regional.anthropic.claude-3-5-haiku-20241022-v1:0": 200_000,
		"global.anthropic.claude-opus-4-6-v1:0":             1_000_000,
		"amazon.nova-lite-v1:0":                             0,
		"x-ai/grok-4":                                       127_999, // its one price might not hold above
		"x-ai/grok-5":                                       256_000,
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A correction that the list has overtaken is noticed when the list is renewed.
func TestStaleCorrectionsAreErrors(t *testing.T) {
	t.Parallel()
	for row, want := range map[string]string{
		`{"provider": "xai", "models": ["grok-4"], "context_window": 1}`:                          "rows[0]: source is missing",
		`{"provider": "xai", "models": ["grok-4"], "context_window": 1, "source": "s"}`:           "xai/grok-4: the list says that the window is 256000, the row expects 0",
		`{"provider": "xai", "models": ["grok-6"], "context_window": 1, "source": "s"}`:           "xai/grok-6: the list has no such model",
		`{"provider": "xai", "models": ["grok-4"], "match": {"equals": "grok-4"}, "source": "s"}`: "the list has the model now: drop match",
		`{"provider": "x", "models": ["y"], "match": {"equals": "y"}, "source": "s"}`:             "the book has no such provider",
		`{"provider": "xai", "windo": 1}`:                                                         `unknown field "windo"`,
	} {
		err := correct(sample(), []byte(`{"about": "", "rows": [`+row+`]}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", row, err, want)
		}
	}
}

// The same data make the same book, in which prices are written as loopd reads
// them.
func TestRun(t *testing.T) {
	t.Parallel()
	var list []provider
	for _, p := range providers() {
		list = append(list, provider{ID: p.id})
	}
	for _, row := range decodeCurated(t) {
		for _, id := range row.Models {
			at := indexOf(list, row.Provider)
			known := find([]chosen{{name: row.Provider, models: list[at].Models}}, row.Provider, id)
			switch {
			case row.Match != nil:
			case known == nil:
				list[at].Models = append(list[at].Models, model{ID: id, Window: row.InsteadOf, Prices: json.RawMessage(`{"input_mtok": 0.18000000000000002}`)})
			case row.Window != 0:
				known.Window = row.InsteadOf
			}
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "genai-prices.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	if err := run(&first, path, nil); err != nil {
		t.Fatal(err)
	}
	if err := run(&second, path, nil); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() || !strings.Contains(first.String(), `{"input_mtok":0.18}`) {
		t.Errorf("two books, or a price with noise:\n%s", first.String())
	}
}

func decodeCurated(t *testing.T) []correction {
	t.Helper()
	var file struct{ Rows []correction }
	if err := json.Unmarshal(curatedRows, &file); err != nil {
		t.Fatal(err)
	}
	return file.Rows
}

// indexOf is where the list has the provider of that name in the book.
func indexOf(list []provider, name string) int {
	for i, p := range providers() {
		if p.name == name {
			return i
		}
	}
	return len(list)
}
