// Package pricing is loopd's price book: what each model costs and how much it
// reads, from a bundled list that an operator's file can override. A model that
// it cannot price completely is refused, because an unknown price must never
// count as zero.
//
// The bundled list is made from public data by internal/tools/genbook; see
// LICENSE-price-data. A provider's name in references is the one its users know;
// what genai-prices calls otherwise is an alias: gemini/... is google/..., xai/...
// is x-ai/..., bedrock/... is aws/..., and so on.
//
// An operator's file has the bundled one's format:
//
//	{"version": "our contract of 2026-08", "providers": [
//	  {"provider": "openai", "models": [
//	    {"id": "gpt-4o", "match": {"starts_with": "gpt-4o-2"}, "context_window": 128000, "max_output": 16384,
//	     "reads": ["image", "document"], "structured": true, "prices": {"input_mtok": 2, "cache_read_mtok": 1, "output_mtok": 8}}]},
//	  {"provider": "ollama", "models": [
//	    {"id": "qwen3:8b", "context_window": 40960, "free": true}]}]}
//
// Prices are USD per million tokens. One that rises with the size of the input is
// {"base": 2, "tiers": [{"start": 200000, "price": 4}]}; prices may be a list,
// each with the "constraint": {"start_date": "2026-09-01"} it holds from. A model
// without a price is refused unless it is spelled out as free. With "structured" the
// provider is asked to keep the model to an agent's output schema.
package pricing

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

//go:embed book.json
var bundled []byte

var (
	// ErrUnknownModel means: the book has no row for the model.
	ErrUnknownModel = errors.New("the price book has no such model")
	// ErrUnpriced means: the row lacks what a bound of the cost needs.
	ErrUnpriced = errors.New("the price book's row is incomplete")
)

// scriptedProvider is the provider of scripted models. They cost nothing, but a
// demo without prices would show no money, so each costs what a large model did
// in 2026.
const scriptedProvider = "scripted"

// Book is a price book. It is immutable and safe for concurrent use.
type Book struct {
	version   string
	date      time.Time
	providers []providerRows    // later ones win
	as        map[string]string // names in references, to the provider whose prices they use
}

// providerRows are the rows of one provider, in the order they are matched.
type providerRows struct {
	Provider string   `json:"provider"`
	Aliases  []string `json:"aliases"`  // other names for it in references
	Fallback []string `json:"fallback"` // providers whose rows hold for models it has none of
	Models   []row    `json:"models"`
	version  string
}

// file is the format of a price book.
type file struct {
	Version   string         `json:"version"`
	Date      string         `json:"date"`
	Source    string         `json:"source"`
	Providers []providerRows `json:"providers"`
}

// Bundled is the book that this version of loopd was built with.
func Bundled() (*Book, error) { return Load(bytes.NewReader(bundled)) }

// Load reads a book in the format that the package's comment shows. Unknown
// members are errors, since a misspelt price would otherwise be a missing one.
func Load(r io.Reader) (*Book, error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var f file
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("price book: %w", err)
	}
	if f.Version == "" {
		return nil, errors.New("price book: version is missing: name the list and its date, so that a cost can be traced to it")
	}
	if dec.More() {
		return nil, fmt.Errorf("price book: more text after byte %d", dec.InputOffset())
	}
	b := &Book{version: f.Version, providers: f.Providers}
	if f.Date != "" {
		var err error
		if b.date, err = time.Parse(time.DateOnly, f.Date); err != nil {
			return nil, fmt.Errorf("price book: date: %q is not a day as 2026-08-21", f.Date)
		}
	}
	for i := range f.Providers {
		if err := f.Providers[i].check(); err != nil {
			return nil, fmt.Errorf("price book: providers[%d]%w", i, err)
		}
		f.Providers[i].version = f.Version
	}
	return b, nil
}

// check completes the rows and names the first one that is wrong.
func (p *providerRows) check() error {
	if p.Provider == "" {
		return errors.New(".provider: is missing")
	}
	for i := range p.Models {
		r := &p.Models[i]
		if r.ID == "" {
			return fmt.Errorf(".models[%d].id: is missing", i)
		}
		if err := r.check(); err != nil {
			return fmt.Errorf(".models[%d] (%s): %w", i, r.ID, err)
		}
	}
	return nil
}

// With is a book in which the rows of over win over those of b.
func (b *Book) With(over *Book) *Book {
	as := maps.Clone(b.as)
	if as == nil {
		as = map[string]string{}
	}
	maps.Copy(as, over.as)
	joined := &Book{
		version: b.version + "+" + over.version, date: b.date,
		providers: slices.Concat(b.providers, over.providers), as: as,
	}
	if joined.date.IsZero() {
		joined.date = over.date
	}
	return joined
}

// As is a book in which models of the provider that references call name cost
// what those of listProvider do, unless name has rows of its own. It is for a
// provider configured under a name that no list knows, such as groq-eu. If the
// book has no listProvider either, Price says so.
func (b *Book) As(name, listProvider string) *Book {
	as := maps.Clone(b.as)
	if as == nil {
		as = map[string]string{}
	}
	as[name] = listProvider
	return &Book{version: b.version, date: b.date, providers: b.providers, as: as}
}

// Version names the lists that the book is made of.
func (b *Book) Version() string { return b.version }

// Date is the day as of which the list was right: the first list's that has one,
// so the bundled one's under an operator's rows. Zero: no list says.
func (b *Book) Date() time.Time { return b.date }

// Price finds the row of a model reference, "provider/model", in force now. The
// error is ErrUnknownModel, with the closest models, or ErrUnpriced.
func (b *Book) Price(ref string) (loop.Price, error) { return b.PriceAt(ref, time.Now()) }

// PriceAt is Price as of a moment.
func (b *Book) PriceAt(ref string, at time.Time) (loop.Price, error) {
	provider, model := loop.SplitModel(ref)
	if provider == scriptedProvider {
		return scriptedPrice(ref), nil
	}
	for p := range b.rowsOf(provider) {
		for _, r := range p.Models {
			if !r.covers(model) {
				continue
			}
			price, err := r.price(ref, p.version, at)
			if err != nil {
				return loop.Price{}, fmt.Errorf("%w: %w; complete it in the file that --prices names", ErrUnpriced, err)
			}
			return price, nil
		}
	}
	if other := b.as[provider]; other != "" && !b.has(other) {
		return loop.Price{}, fmt.Errorf("%w: %q: %s is to cost what %s does, which is not among %s", ErrUnknownModel, ref, provider, other, strings.Join(b.Providers(), ", "))
	}
	return loop.Price{}, fmt.Errorf("%w: %q; the closest are %s; add it to the file that --prices names", ErrUnknownModel, ref, strings.Join(b.closest(ref), ", "))
}

// has reports whether any list has the provider.
func (b *Book) has(name string) bool {
	return slices.ContainsFunc(b.providers, func(p providerRows) bool {
		return p.Provider == name || slices.Contains(p.Aliases, name)
	})
}

// canonical is the provider's own name for one of its aliases.
func (b *Book) canonical(name string) string {
	for _, p := range b.providers {
		if slices.Contains(p.Aliases, name) {
			return p.Provider
		}
	}
	return name
}

// rowsOf are the lists that hold for a provider, the first to ask first: its
// own, then those of the provider whose prices it uses, then of each the
// fallbacks. Of lists for one provider, the last loaded comes first.
func (b *Book) rowsOf(provider string) iter.Seq[providerRows] {
	names := []string{b.canonical(provider)}
	if other := b.as[provider]; other != "" {
		names = append(names, b.canonical(other))
	}
	own := names
	for _, p := range b.providers {
		if slices.Contains(own, b.canonical(p.Provider)) {
			names = append(names, p.Fallback...)
		}
	}
	return func(yield func(providerRows) bool) {
		for _, name := range names {
			for _, p := range slices.Backward(b.providers) {
				if b.canonical(p.Provider) == name && !yield(p) {
					return
				}
			}
		}
	}
}

func scriptedPrice(ref string) loop.Price {
	return loop.Price{
		Model: ref, Version: "scripted", Window: 200_000, ImageTokens: 1000,
		Reads: []loop.PartKind{loop.PartImage, loop.PartDocument},
		Rates: loop.Rates{
			Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD,
			CacheWrite1h: 6 * loop.MicroUSD, Output: 15 * loop.MicroUSD, Reasoning: 15 * loop.MicroUSD,
		},
	}
}
