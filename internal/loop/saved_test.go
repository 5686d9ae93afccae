package loop_test

import (
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

func TestCacheSaved(t *testing.T) {
	t.Parallel()
	tiered := sonnet()
	high := tiered.Rates
	high.Input, high.CacheRead = 6*perMillion, perMillion
	tiered.Tiers = []loop.Tier{{AboveInput: 10_000, Rates: high}}
	for name, c := range map[string]struct {
		price loop.Price
		usage loop.Usage
		want  string
	}{
		"no cache":       {sonnet(), loop.Usage{InputUncached: 1000, Output: 500}, "0"},
		"reads":          {sonnet(), loop.Usage{InputUncached: 10, CacheRead: 1000, Output: 500}, "0.0027"},
		"writes":         {sonnet(), loop.Usage{CacheWrite5m: 1000, CacheWrite1h: 1000}, "-0.0015"},
		"both":           {sonnet(), loop.Usage{CacheRead: 1000, CacheWrite5m: 1000}, "0.00195"},
		"above the tier": {tiered, loop.Usage{InputUncached: 1, CacheRead: 10_000}, "0.05"},
		"free":           {loop.Price{Free: true, Window: 1}, loop.Usage{CacheRead: 1000}, "0"},
	} {
		if got := c.price.CacheSaved(c.usage); got.String() != c.want {
			t.Errorf("%s: saved %s USD, want %s", name, got, c.want)
		}
	}
}
