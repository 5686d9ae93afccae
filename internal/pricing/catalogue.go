package pricing

import (
	"cmp"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Listing is one row of the catalogue: what is known of a model.
type Listing struct {
	Ref        string // "provider/model"; other names may mean the same row
	Version    string // of the list that the row is from
	Window     int64  // context window, tokens; 0 = not known
	MaxOutput  int64  // tokens; 0 = not known
	Rates      loop.Rates
	Tiers      []loop.Tier     // by AboveInput, rising
	Reads      []loop.PartKind // besides text
	Structured bool            // the provider can keep it to a JSON Schema
	Free       bool            // costs nothing, as the operator says
	Complete   bool            // loopd runs the model
	Why        string          // it does not; empty if it does
}

// List is all that the book knows of a provider's models now, by reference, the
// incomplete ones too. The provider may go by an alias or a name given with As.
func (b *Book) List(provider string) []Listing {
	now, seen := time.Now(), map[string]bool{}
	var all []Listing
	for p := range b.rowsOf(provider) {
		for _, r := range p.Models {
			if seen[r.ID] {
				continue // an earlier list answers for it
			}
			seen[r.ID] = true
			price, err := r.price(provider+"/"+r.ID, p.version, now)
			l := Listing{
				Ref: price.Model, Version: price.Version, Window: price.Window, MaxOutput: price.MaxOutput,
				Rates: price.Rates, Tiers: price.Tiers, Reads: price.Reads, Structured: price.Structured, Free: price.Free, Complete: err == nil,
			}
			if err != nil {
				l.Why = err.Error()
			}
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(x, y Listing) int { return cmp.Compare(x.Ref, y.Ref) })
	return all
}

// Providers are the names of all providers that have rows, sorted, those given
// with As too. Aliases are left out.
func (b *Book) Providers() []string {
	var names []string
	for _, p := range b.providers {
		names = append(names, b.canonical(p.Provider))
	}
	for name := range b.as {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
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
