package pricing_test

import (
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// An article on agent loops reckons what ten calls cost at the price of Claude
// Sonnet 4.5: 2,000 tokens of prompt and tools, and 800 more with each call, so
// that calls read (2,000 + 800) + ... + (2,000 + 8,000); 1,500 tokens are written.
// It says "~56,000 input tokens", "~$0.17", "~$0.02", "~$0.19 uncached" and, with
// reads of the prefix at a tenth, "~$0.06-0.07", about "$0.12 saved".
//
// Its sum is 8,000 short: ten times 2,000 and 800 times (1 + ... + 10) are 64,000.
// 56,000 is the sum for prefixes that begin with 2,000 alone, as a run does: the
// first call has no history yet. Everything else follows from that to the cent.
func TestArticlesArithmetic(t *testing.T) {
	t.Parallel()
	price, err := bundled(t).Price("anthropic/claude-sonnet-4-5")
	if err != nil {
		t.Fatal(err)
	}
	const calls, static, perCall, written = 10, 2_000, 800, 1_500

	asWritten, uncached := loop.Usage{}, loop.Usage{Output: written}
	for i := range int64(calls) {
		asWritten.InputUncached += static + (i+1)*perCall
		uncached.InputUncached += static + i*perCall
	}
	if asWritten.Input() != 64_000 || uncached.Input() != 56_000 {
		t.Errorf("calls read %d and %d tokens, want 64,000 and 56,000", asWritten.Input(), uncached.Input())
	}
	plain := price.Cost(uncached)
	wantUSD(t, "input", plain.Input, "0.168")       // ~0.17
	wantUSD(t, "output", plain.Output, "0.0225")    // ~0.02
	wantUSD(t, "uncached", plain.Total(), "0.1905") // ~0.19

	// With loopd's marks each call writes what is new to the cache, at 1.25 times
	// the price, and reads the rest, at a tenth.
	marked := loop.Usage{Output: written}
	for i := range int64(calls) {
		if i == 0 {
			marked.CacheWrite5m += static
			continue
		}
		marked.CacheRead += static + (i-1)*perCall
		marked.CacheWrite5m += perCall
	}
	if marked.Input() != uncached.Input() || marked.CacheRead != 46_800 || marked.CacheWrite5m != 9_200 {
		t.Errorf("marked: %+v", marked)
	}
	cost := price.Cost(marked)
	wantUSD(t, "reads", cost.CacheRead, "0.01404")
	wantUSD(t, "writes", cost.CacheWrite, "0.0345")
	wantUSD(t, "marked", cost.Total(), "0.07104")              // the article leaves the dearer writes out
	wantUSD(t, "saved", plain.Total()-cost.Total(), "0.11946") // ~0.12

	// Without what writing costs more than reading anew, it is the article's amount.
	asRead := price.Cost(loop.Usage{CacheRead: marked.CacheRead, InputUncached: marked.CacheWrite5m, Output: written})
	wantUSD(t, "as the article reckons", asRead.Total(), "0.06414") // ~0.06-0.07
}

func wantUSD(t *testing.T, what string, got loop.USD, want string) {
	t.Helper()
	if got.String() != want {
		t.Errorf("%s: %s USD, want %s", what, got, want)
	}
}
