package loop_test

import (
	"math"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"pgregory.net/rapid"
)

// perMillion is one USD for a million tokens.
const perMillion = loop.MicroUSD

// sonnet has the rates of the worked examples: 3 in, 3.75 cache write, 15 out.
func sonnet() loop.Price {
	return loop.Price{Model: "anthropic/sonnet", Version: "1", Window: 200_000, Rates: loop.Rates{
		Input: 3 * perMillion, CacheRead: perMillion * 3 / 10, CacheWrite5m: perMillion * 15 / 4, CacheWrite1h: perMillion * 15 / 4,
		Output: 15 * perMillion, Reasoning: 15 * perMillion,
	}}
}

func TestPriceCost(t *testing.T) {
	t.Parallel()
	tiered := sonnet()
	high := tiered.Rates
	high.Input, high.Output = 6*perMillion, 22*perMillion
	tiered.Tiers = []loop.Tier{{AboveInput: 200_000, Rates: high}}
	for name, c := range map[string]struct {
		price loop.Price
		usage loop.Usage
		want  string
	}{
		// Reported as 0.0913 by a gateway that billed the cache write twice (litellm 9812).
		"cache write once":  {sonnet(), loop.Usage{InputUncached: 3, CacheWrite5m: 12304, Output: 550}, "0.054399"},
		"one hour write":    {sonnet(), loop.Usage{CacheWrite1h: 1000}, "0.00375"},
		"cache read":        {sonnet(), loop.Usage{CacheRead: 1000}, "0.0003"},
		"reasoning":         {sonnet(), loop.Usage{Output: 10, Reasoning: 90}, "0.0015"},
		"nothing":           {sonnet(), loop.Usage{}, "0"},
		"below the tier":    {tiered, loop.Usage{InputUncached: 200_000, Output: 1000}, "0.615"},
		"above, whole call": {tiered, loop.Usage{InputUncached: 200_001, Output: 1000}, "1.222006"},
		"cached input too":  {tiered, loop.Usage{InputUncached: 1, CacheRead: 200_000}, "0.060006"},
		"cannot be counted": {sonnet(), loop.Usage{InputUncached: math.MaxInt64}, "9223372.036854775807"},
		"not below zero":    {sonnet(), loop.Usage{InputUncached: -5}, "0"},
	} {
		if got := c.price.Cost(c.usage).Total().String(); got != c.want {
			t.Errorf("%s: %s USD, want %s", name, got, c.want)
		}
	}
}

// TestPriceBound: no usage within a bound costs more than the bound, whatever
// the rates and tiers.
func TestPriceBound(t *testing.T) {
	t.Parallel()
	tokens, rate := rapid.Int64Range(0, 300_000), rapid.Int64Range(0, int64(100*perMillion))
	rates := rapid.Custom(func(t *rapid.T) loop.Rates {
		r := func(name string) loop.USD { return loop.USD(rate.Draw(t, name)) }
		return loop.Rates{
			Input: r("input"), CacheRead: r("read"), CacheWrite5m: r("5m"), CacheWrite1h: r("1h"),
			Output: r("output"), Reasoning: r("reasoning"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		p := loop.Price{Rates: rates.Draw(t, "base")}
		for i := range rapid.IntRange(0, 2).Draw(t, "tiers") {
			p.Tiers = append(p.Tiers, loop.Tier{AboveInput: int64(i+1) * 100_000, Rates: rates.Draw(t, "tier")})
		}
		u := loop.Usage{
			InputUncached: tokens.Draw(t, "uncached"), CacheRead: tokens.Draw(t, "read"), CacheWrite5m: tokens.Draw(t, "5m"),
			CacheWrite1h: tokens.Draw(t, "1h"), Output: tokens.Draw(t, "output"), Reasoning: tokens.Draw(t, "reasoning"),
		}
		in, out := u.Input()+tokens.Draw(t, "spare in"), u.AllOutput()+tokens.Draw(t, "spare out")
		if cost, bound := p.Cost(u).Total(), p.Bound(in, out); cost > bound {
			t.Fatalf("costs %s, bound by %s", cost, bound)
		}
	})
	if got := sonnet().Bound(math.MaxInt64, math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("a bound that cannot be counted is %s, it must be above every limit", got)
	}
}

// TestWorkedExample is the example the budget was designed with: 9,000 tokens of
// input, answers of 4,096, 0.110 of 0.20 USD spent. The full call does not fit,
// nor does the smallest one with its wrap-up; the wrap-up alone does.
func TestWorkedExample(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]loop.USD{
		"0.09519": sonnet().Bound(9000, 4096),            // the full call
		"0.12447": sonnet().Bound(9000+4096+16000, 1024), // its wrap-up
		"0.03759": sonnet().Bound(9000, 256),             // the smallest call
		"0.06543": sonnet().Bound(9000+256+4096, 1024),   // its wrap-up, results cut down
		"0.04911": sonnet().Bound(9000, 1024),            // the wrap-up now
	} {
		if got.String() != want {
			t.Errorf("bound %s, want %s", got, want)
		}
	}

	limits := loop.Defaults()
	limits.Cost = loop.OneUSD / 5
	spec := loop.Spec{
		Definition: loop.AgentSpec{Model: "anthropic/sonnet", Tools: tools()[:1]}, Limits: limits, Price: sonnet(),
	}
	spec.Input = strings.Repeat("x", 9000-int(boundOf(t, spec)))
	if got := boundOf(t, spec); got != 9000 {
		t.Fatalf("the request is bound by %d tokens", got)
	}
	s := fold(t, spec,
		loop.ModelStarted{Call: 1, MaxOutput: 4096, InputBound: 9000, Hold: sonnet().Bound(9000, 4096)},
		loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: loop.Cost{Output: 110 * loop.MilliUSD}},
	)

	trip, ok := s.Next(epoch0).Intent()[0].(loop.Tripped)
	if !ok || trip.Guard != "cost" || trip.Verdict != loop.VerdictFinalTurn {
		t.Fatalf("wants %+v, want the final turn for cost", s.Next(epoch0).Intent()[0])
	}
	apply(t, s, trip)
	call, ok := s.Next(epoch0).(loop.CallModel)
	if !ok || call.Started.Purpose != loop.PurposeWrapUp || call.Started.MaxOutput != 1024 {
		t.Fatalf("wants %+v, want the whole wrap-up", s.Next(epoch0))
	}
	if worst := s.Cost().Total() + call.Started.Hold; worst > 160*loop.MilliUSD {
		t.Errorf("may end at %s USD, want about 0.159", worst)
	}
}

// boundOf is the input bound of a run's first call.
func boundOf(t *testing.T, spec loop.Spec) int64 {
	t.Helper()
	spec.Limits.Cost = loop.OneUSD
	return fold(t, spec).Next(epoch0).(loop.CallModel).Started.InputBound
}

func TestPriceValidate(t *testing.T) {
	t.Parallel()
	if err := sonnet().Validate(); err != nil {
		t.Errorf("a good price: %v", err)
	}
	rates := sonnet().Rates
	for name, c := range map[string]struct {
		spoil func(*loop.Price)
		want  string
	}{
		"free input":  {func(p *loop.Price) { p.Rates.Input = 0 }, "input and output price"},
		"free output": {func(p *loop.Price) { p.Rates.Output = 0 }, "input and output price"},
		"no window":   {func(p *loop.Price) { p.Window = 0 }, "window"},
		"tiers fall": {func(p *loop.Price) {
			p.Tiers = []loop.Tier{{AboveInput: 2, Rates: rates}, {AboveInput: 1, Rates: rates}}
		}, "rise"},
		"tier has no rate": {func(p *loop.Price) { p.Tiers = []loop.Tier{{AboveInput: 7}} }, "above 7 tokens"},
	} {
		p := sonnet()
		c.spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), p.Model) {
			t.Errorf("%s: error %v does not name the model and %q", name, err, c.want)
		}
	}
}
