package pricing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// dated is a list of prices, each from a date on. A single one has no date.
type dated []pricesFrom

type pricesFrom struct {
	Constraint struct {
		StartDate string `json:"start_date"`
		StartTime string `json:"start_time"` // time of day; a run may cross it
		EndTime   string `json:"end_time"`
	} `json:"constraint"`
	Prices prices `json:"prices"`
}

// UnmarshalJSON takes a list, or a single set of prices.
func (d *dated) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '[' {
		var list []pricesFrom
		err := strict(b, &list)
		*d = list
		return err
	}
	var one pricesFrom
	err := strict(b, &one.Prices)
	*d = dated{one}
	return err
}

// strict decodes JSON and refuses members that it does not know, which the
// decoder of the whole book cannot ask of types that decode themselves.
func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// at is the newest set of prices that is in force. Of prices that change with
// the time of day it is the dearest: a run may last from one into the other, and
// the discount is too uncertain to count on.
func (d dated) at(now time.Time) (prices, error) {
	var best *prices
	for _, p := range slices.Backward(d) {
		c := p.Constraint
		if c.StartDate != "" && now.UTC().Format(time.DateOnly) < c.StartDate {
			continue
		}
		if best == nil || p.Prices.dearer(*best) {
			best = &p.Prices
		}
		if c.StartTime == "" && c.EndTime == "" {
			break // in force all day, so what is older is not
		}
	}
	if best == nil {
		return prices{}, errors.New("no price is in force")
	}
	return *best, nil
}

// prices are USD per million tokens. Those of audio are not read: loopd sends
// text.
type prices struct {
	Input      *tiered `json:"input_mtok"`
	CacheRead  *tiered `json:"cache_read_mtok"`
	CacheWrite *tiered `json:"cache_write_mtok"`
	Write1h    *tiered `json:"cache_write_1h_mtok"`
	Output     *tiered `json:"output_mtok"`

	AudioInput  json.RawMessage `json:"input_audio_mtok"`
	AudioRead   json.RawMessage `json:"cache_audio_read_mtok"`
	AudioOutput json.RawMessage `json:"output_audio_mtok"`
}

// dearer compares base prices.
func (p prices) dearer(q prices) bool {
	sum := func(p prices) (v loop.USD) {
		for _, t := range []*tiered{p.Input, p.Output} {
			if t != nil {
				v += t.base
			}
		}
		return v
	}
	return sum(p) > sum(q)
}

// tiered is a price that may rise with the size of the input.
type tiered struct {
	base  loop.USD
	tiers []level
}

type level struct {
	start int64
	price loop.USD
}

// UnmarshalJSON takes a number, or a base with tiers.
func (t *tiered) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] != '{' {
		v, err := perToken(json.Number(b))
		t.base = v
		return err
	}
	var wire struct {
		Base  json.Number `json:"base"`
		Tiers []struct {
			Start int64       `json:"start"`
			Price json.Number `json:"price"`
		} `json:"tiers"`
	}
	if err := strict(b, &wire); err != nil {
		return err
	}
	var err error
	if t.base, err = perToken(wire.Base); err != nil {
		return err
	}
	for _, w := range wire.Tiers {
		v, err := perToken(w.Price)
		if err != nil {
			return err
		}
		t.tiers = append(t.tiers, level{w.Start, v})
	}
	return nil
}

// perToken turns USD per million tokens into USD per token, exactly: a
// millionth of a dollar is a million pico-dollars.
func perToken(n json.Number) (loop.USD, error) {
	usd, err := loop.ParseUSD(n.String())
	if err != nil {
		return 0, fmt.Errorf("price: %w", err)
	}
	if usd%loop.MicroUSD != 0 { // below 1e-6 USD per million tokens: round up, never down
		usd += loop.MicroUSD - usd%loop.MicroUSD
	}
	return usd / 1_000_000, nil
}

// at is the price for an input of that many tokens.
func (t *tiered) at(input int64) loop.USD {
	v := t.base
	for _, s := range t.tiers {
		if input > s.start {
			v = s.price
		}
	}
	return v
}

// row is one model as the file has it.
type row struct {
	ID            string          `json:"id"`
	Match         match           `json:"match"`
	ContextWindow int64           `json:"context_window"`
	MaxOutput     int64           `json:"max_output"`
	Reads         []loop.PartKind `json:"reads"`
	ImageTokens   int64           `json:"image_tokens"`
	Structured    bool            `json:"structured"`
	Free          bool            `json:"free"`
	Prices        dated           `json:"prices"`
}

// check compiles the row's rule and names what is wrong with it.
func (r *row) check() error {
	for _, kind := range r.Reads {
		if kind != loop.PartImage && kind != loop.PartDocument {
			return fmt.Errorf("reads: %q is not a kind of input: write %q or %q", kind, loop.PartImage, loop.PartDocument)
		}
	}
	if r.ContextWindow < 0 || r.MaxOutput < 0 || r.ImageTokens < 0 {
		return errors.New("context_window, max_output and image_tokens must not be negative; leave out what is not known")
	}
	if r.Free && len(r.Prices) > 0 {
		return errors.New("free: a free model has no prices; remove one of the two")
	}
	return r.Match.compile()
}

// covers reports whether a name of a model means the row. The list's rules are in
// lower case, names need not be.
func (r row) covers(name string) bool {
	return r.ID == name || r.Match.matches(name) || r.Match.matches(strings.ToLower(name))
}

// price turns the row into what a run is held to.
func (r row) price(ref, version string, now time.Time) (loop.Price, error) {
	price := loop.Price{
		Model: ref, Version: version, Window: r.ContextWindow, MaxOutput: r.MaxOutput,
		Reads: slices.Clone(r.Reads), ImageTokens: r.ImageTokens, Structured: r.Structured, Free: r.Free,
	}
	if r.Free {
		return price, price.Validate()
	}
	p, err := r.Prices.at(now)
	if err != nil {
		return price, fmt.Errorf("%s: %w; for a model that costs nothing write \"free\": true", ref, err)
	}
	if p.Input == nil || p.Output == nil {
		return price, fmt.Errorf("%s: input_mtok and output_mtok must both be known; for a model that costs nothing write \"free\": true", ref)
	}
	anthropic := strings.Contains(ref, "claude") // also those that others resell
	price.Rates = p.rates(0, anthropic)
	for _, start := range p.starts() {
		price.Tiers = append(price.Tiers, loop.Tier{AboveInput: start, Rates: p.rates(start+1, anthropic)})
	}
	return price, price.Validate()
}

// starts are the input sizes at which any price changes, rising.
func (p prices) starts() []int64 {
	var all []int64
	for _, t := range []*tiered{p.Input, p.CacheRead, p.CacheWrite, p.Write1h, p.Output} {
		if t == nil {
			continue
		}
		for _, s := range t.tiers {
			all = append(all, s.start)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rates are the prices per token for an input of that many tokens. What the list
// lacks is filled in so that it cannot be too low:
//   - a cache read without a price of its own gets no discount;
//   - a cache write costs the plain input, as OpenAI and most others bill it;
//   - a one-hour write costs twice the input where five-minute ones have a price
//     at Anthropic, as it publishes and genai-prices leaves out. No other
//     provider has them, and a made-up price would double every hold;
//   - reasoning is billed as output by all providers.
func (p prices) rates(input int64, anthropic bool) loop.Rates {
	r := loop.Rates{Input: p.Input.at(input), Output: p.Output.at(input)}
	r.CacheRead, r.CacheWrite5m, r.Reasoning = r.Input, r.Input, r.Output
	if p.CacheRead != nil {
		r.CacheRead = p.CacheRead.at(input)
	}
	if p.CacheWrite != nil {
		r.CacheWrite5m = p.CacheWrite.at(input)
	}
	r.CacheWrite1h = r.CacheWrite5m
	switch {
	case p.Write1h != nil:
		r.CacheWrite1h = p.Write1h.at(input)
	case anthropic && p.CacheWrite != nil:
		r.CacheWrite1h = max(r.CacheWrite5m, 2*r.Input)
	}
	return r
}
