package loop

import "fmt"

// Usage counts the tokens of one model call or of a whole run in disjoint
// buckets: no token is in two of them, so the sum is the true total whatever
// the provider's own reporting includes in what.
type Usage struct {
	InputUncached int64 `json:"input_uncached,omitempty"`
	CacheRead     int64 `json:"cache_read,omitempty"`
	CacheWrite5m  int64 `json:"cache_write_5m,omitempty"`
	CacheWrite1h  int64 `json:"cache_write_1h,omitempty"`
	Output        int64 `json:"output,omitempty"` // visible output, reasoning excluded
	Reasoning     int64 `json:"reasoning,omitempty"`
}

// Input is every token the provider read, cached or not.
func (u Usage) Input() int64 { return u.InputUncached + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h }

// AllOutput is every token the provider wrote, reasoning included.
func (u Usage) AllOutput() int64 { return u.Output + u.Reasoning }

// Total is input plus output.
func (u Usage) Total() int64 { return u.Input() + u.AllOutput() }

// Add returns the sum, bucket by bucket.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		InputUncached: u.InputUncached + v.InputUncached,
		CacheRead:     u.CacheRead + v.CacheRead,
		CacheWrite5m:  u.CacheWrite5m + v.CacheWrite5m,
		CacheWrite1h:  u.CacheWrite1h + v.CacheWrite1h,
		Output:        u.Output + v.Output,
		Reasoning:     u.Reasoning + v.Reasoning,
	}
}

// Rates are prices per single token.
type Rates struct {
	Input        USD `json:"input"`
	CacheRead    USD `json:"cache_read"`
	CacheWrite5m USD `json:"cache_write_5m"`
	CacheWrite1h USD `json:"cache_write_1h"`
	Output       USD `json:"output"`
	Reasoning    USD `json:"reasoning"`
}

// dearestInput is the most one input token can cost. loopd asks for five-minute
// cache writes only, but a bound must not depend on that.
func (r Rates) dearestInput() USD {
	return max(r.Input, r.CacheRead, r.CacheWrite5m, r.CacheWrite1h)
}

// dearestOutput is the most one output token can cost.
func (r Rates) dearestOutput() USD { return max(r.Output, r.Reasoning) }

// Tier replaces the base rates for a whole request whose input is above a size,
// the way long-context prices are published.
type Tier struct {
	AboveInput int64 `json:"above_input"` // tokens, cached ones included
	Rates      Rates `json:"rates"`
}

// Price is one row of the price book: what a model costs and how much it can
// read and write. A run keeps the row it started with, so that its cost can be
// computed again from its journal.
type Price struct {
	Model     string `json:"model"`   // "provider/model"
	Version   string `json:"version"` // of the price book the row came from
	Rates     Rates  `json:"rates"`
	Tiers     []Tier `json:"tiers,omitempty"`      // by AboveInput, rising
	Window    int64  `json:"window"`               // context window, tokens
	MaxOutput int64  `json:"max_output,omitempty"` // 0 = not known

	// Reads are the kinds of part besides text that the model takes as input:
	// PartImage, PartDocument. Empty: only text, or not known.
	Reads []PartKind `json:"reads,omitempty"`
	// ImageTokens is the most that one image counts as input; 0 = not known, then
	// a bound is assumed that no model is known to pass.
	ImageTokens int64 `json:"image_tokens,omitempty"`
	// Structured: the provider can keep this model to a JSON Schema. False: it
	// cannot, or it is not known.
	Structured bool `json:"structured,omitempty"`
	// Free marks a model that costs nothing, such as one on the operator's own
	// machine: the only row in which rates may be zero.
	Free bool `json:"free,omitempty"`
}

// Validate reports a row that cannot bound a cost: a missing input or output
// price, or no window. A rate of zero is refused unless the row says that the
// model is free, because in a price list zero almost always means "not known".
func (p Price) Validate() error {
	if !p.Free && (p.Rates.Input <= 0 || p.Rates.Output <= 0) {
		return fmt.Errorf("price of %s: input and output price must both be known and above zero", p.Model)
	}
	if p.Window <= 0 {
		return fmt.Errorf("price of %s: the context window must be known", p.Model)
	}
	for i, t := range p.Tiers {
		if i > 0 && t.AboveInput <= p.Tiers[i-1].AboveInput {
			return fmt.Errorf("price of %s: tiers must rise", p.Model)
		}
		if t.Rates.Input <= 0 || t.Rates.Output <= 0 {
			return fmt.Errorf("price of %s: tier above %d tokens has no input or output price", p.Model, t.AboveInput)
		}
	}
	return nil
}

// rates are the prices for a request that reads input tokens.
func (p Price) rates(input int64) Rates {
	r := p.Rates
	for _, t := range p.Tiers {
		if input > t.AboveInput {
			r = t.Rates
		}
	}
	return r
}

// Cost splits what a usage cost by the kinds that dashboards ask for.
type Cost struct {
	Input      USD `json:"input"`
	CacheRead  USD `json:"cache_read"`
	CacheWrite USD `json:"cache_write"`
	Output     USD `json:"output"` // reasoning included
}

// MarshalJSON writes what the tags of the fields say. Every append has some of them, and
// four amounts one by one cost as much as all the rest of a head.
func (c Cost) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, len(`{"input":"","cache_read":"","cache_write":"","output":""}`)+4*usdLength)
	b = c.Input.append(append(b, `{"input":"`...))
	b = c.CacheRead.append(append(b, `","cache_read":"`...))
	b = c.CacheWrite.append(append(b, `","cache_write":"`...))
	b = c.Output.append(append(b, `","output":"`...))
	return append(b, `"}`...), nil
}

// Total is the sum of all kinds.
func (c Cost) Total() USD { return c.Input.plus(c.CacheRead).plus(c.CacheWrite).plus(c.Output) }

// Add returns the sum, kind by kind.
func (c Cost) Add(d Cost) Cost {
	return Cost{
		Input: c.Input.plus(d.Input), CacheRead: c.CacheRead.plus(d.CacheRead),
		CacheWrite: c.CacheWrite.plus(d.CacheWrite), Output: c.Output.plus(d.Output),
	}
}

// Cost prices a usage exactly.
func (p Price) Cost(u Usage) Cost {
	r := p.rates(u.Input())
	return Cost{
		Input:      r.Input.times(u.InputUncached),
		CacheRead:  r.CacheRead.times(u.CacheRead),
		CacheWrite: r.CacheWrite5m.times(u.CacheWrite5m).plus(r.CacheWrite1h.times(u.CacheWrite1h)),
		Output:     r.Output.times(u.Output).plus(r.Reasoning.times(u.Reasoning)),
	}
}

// CacheSaved is what the input of a usage would have cost without a prompt cache, less
// what it cost. It is below zero if writing into the cache cost more than reading from
// it saved.
func (p Price) CacheSaved(u Usage) USD {
	paid := p.Cost(u)
	return p.rates(u.Input()).Input.times(u.Input()) - paid.Input.plus(paid.CacheRead).plus(paid.CacheWrite)
}

// Bound is the most a request can cost that reads at most input tokens and may
// write at most output tokens: every token at its dearest rate, at the dearest
// tier that the bound can reach.
func (p Price) Bound(input, output int64) USD {
	in, out := p.dearest(input)
	return in.times(input).plus(out.times(output))
}

// dearest returns the highest input and output rates of any tier that a request
// of at most input tokens can fall into.
func (p Price) dearest(input int64) (in, out USD) {
	in, out = p.Rates.dearestInput(), p.Rates.dearestOutput()
	for _, t := range p.Tiers {
		if input > t.AboveInput {
			in, out = max(in, t.Rates.dearestInput()), max(out, t.Rates.dearestOutput())
		}
	}
	return in, out
}
