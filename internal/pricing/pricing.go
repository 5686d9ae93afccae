// Package pricing is loopd's price book: what each model costs, from a bundled
// list that an operator's file can override. A model that it cannot price
// completely is refused, because an unknown price must never count as zero.
//
// The bundled list is made from public data by internal/tools/genbook; see
// LICENSE-price-data.
package pricing

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	providers []providerRows // later ones win
}

// providerRows are the rows of one provider, in the order they are matched.
type providerRows struct {
	Provider string `json:"provider"`
	Models   []row  `json:"models"`
	version  string
}

// row is one model as the file has it.
type row struct {
	ID            string `json:"id"`
	Match         match  `json:"match"`
	ContextWindow int64  `json:"context_window"`
	MaxOutput     int64  `json:"max_output"`
	Prices        dated  `json:"prices"`
}

// file is the format of a price book.
type file struct {
	Version   string         `json:"version"`
	Source    string         `json:"source"`
	Providers []providerRows `json:"providers"`
}

// Bundled is the book that this version of loopd was built with.
func Bundled() (*Book, error) { return Load(strings.NewReader(string(bundled))) }

// Load reads a book in the format of the bundled one: providers with models,
// prices in USD per million tokens. Unknown members are errors, since a misspelt
// price would otherwise be a missing one.
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
	for i := range f.Providers {
		if err := f.Providers[i].check(); err != nil {
			return nil, fmt.Errorf("price book: providers[%d]%w", i, err)
		}
		f.Providers[i].version = f.Version
	}
	return &Book{version: f.Version, providers: f.Providers}, nil
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
		if err := r.Match.compile(); err != nil {
			return fmt.Errorf(".models[%d] (%s): %w", i, r.ID, err)
		}
	}
	return nil
}

// With is a book in which the rows of over win over those of b.
func (b *Book) With(over *Book) *Book {
	return &Book{version: b.version + "+" + over.version, providers: slices.Concat(b.providers, over.providers)}
}

// Version names the lists that the book is made of.
func (b *Book) Version() string { return b.version }

// Price finds the row of a model reference, "provider/model", in force now. The
// error is ErrUnknownModel, with the closest models, or ErrUnpriced.
func (b *Book) Price(ref string) (loop.Price, error) { return b.PriceAt(ref, time.Now()) }

// PriceAt is Price as of a moment.
func (b *Book) PriceAt(ref string, at time.Time) (loop.Price, error) {
	provider, model := loop.SplitModel(ref)
	if provider == scriptedProvider {
		return scriptedPrice(ref), nil
	}
	for _, p := range slices.Backward(b.providers) {
		if p.Provider != provider {
			continue
		}
		for _, r := range p.Models {
			if r.ID != model && !r.Match.matches(model) {
				continue
			}
			price, err := r.price(ref, p.version, at)
			if err != nil {
				return loop.Price{}, fmt.Errorf("%w: %w; complete it in the file that --prices names", ErrUnpriced, err)
			}
			return price, nil
		}
	}
	return loop.Price{}, fmt.Errorf("%w: %q; the closest are %s; add it to the file that --prices names", ErrUnknownModel, ref, strings.Join(b.closest(ref), ", "))
}

// closest lists the three model references that are the fewest changes away
// from ref.
func (b *Book) closest(ref string) []string {
	refs := b.Models()
	away := make(map[string]int, len(refs))
	for _, r := range refs {
		away[r] = distance(ref, r)
	}
	slices.SortStableFunc(refs, func(x, y string) int { return away[x] - away[y] })
	return refs[:min(3, len(refs))]
}

// distance counts the bytes to insert, delete or replace to turn a into b.
func distance(a, b string) int {
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
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// Models lists every model that can be priced now, as references.
func (b *Book) Models() []string {
	var refs []string
	for _, p := range b.providers {
		for _, r := range p.Models {
			ref := p.Provider + "/" + r.ID
			if _, err := r.price(ref, p.version, time.Now()); err == nil {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

func scriptedPrice(ref string) loop.Price {
	return loop.Price{
		Model: ref, Version: "scripted", Window: 200_000,
		Rates: loop.Rates{
			Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD,
			CacheWrite1h: 6 * loop.MicroUSD, Output: 15 * loop.MicroUSD, Reasoning: 15 * loop.MicroUSD,
		},
	}
}
