package pricing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

func bundled(t *testing.T) *pricing.Book {
	t.Helper()
	b, err := pricing.Bundled()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The rates are those that Anthropic and OpenAI publish, per token in pico-dollars.
func TestKnownPrices(t *testing.T) {
	t.Parallel()
	tests := map[string]loop.Rates{
		"anthropic/claude-3-5-sonnet-20241022": {Input: 3_000_000, CacheRead: 300_000, CacheWrite5m: 3_750_000, CacheWrite1h: 6_000_000, Output: 15_000_000, Reasoning: 15_000_000},
		"anthropic/claude-3-5-haiku-latest":    {Input: 800_000, CacheRead: 80_000, CacheWrite5m: 1_000_000, CacheWrite1h: 1_600_000, Output: 4_000_000, Reasoning: 4_000_000},
		"openai/gpt-4o":                        {Input: 2_500_000, CacheRead: 1_250_000, CacheWrite5m: 2_500_000, CacheWrite1h: 2_500_000, Output: 10_000_000, Reasoning: 10_000_000},
		"openai/gpt-4o-mini":                   {Input: 150_000, CacheRead: 75_000, CacheWrite5m: 150_000, CacheWrite1h: 150_000, Output: 600_000, Reasoning: 600_000},
	}
	for ref, want := range tests {
		got, err := bundled(t).Price(ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if diff := cmp.Diff(want, got.Rates); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", ref, diff)
		}
		if got.Version != "genai-prices@47df840" || got.Model != ref || got.Window == 0 {
			t.Errorf("%s: row is %+v", ref, got)
		}
	}
}

// Sonnet 4.6 had a dearer tier above 200,000 tokens until 2026-03-13.
func TestTiersAndDates(t *testing.T) {
	t.Parallel()
	before, err := bundled(t).PriceAt("anthropic/claude-sonnet-4-6", time.Date(2026, 3, 12, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Tiers) != 1 || before.Tiers[0].AboveInput != 200_000 || before.Tiers[0].Rates.Output != 22_500_000 {
		t.Errorf("tiers before the change: %+v", before.Tiers)
	}
	small, large := before.Cost(loop.Usage{InputUncached: 200_000}), before.Cost(loop.Usage{InputUncached: 200_001})
	if small.Input.String() != "0.6" || large.Input.String() != "1.200006" {
		t.Errorf("200,000 tokens cost %s and one more makes it %s, want 0.6 and 1.200006", small.Input, large.Input)
	}
	after, err := bundled(t).PriceAt("anthropic/claude-sonnet-4-6", time.Date(2026, 3, 13, 0, 0, 0, 0, time.UTC))
	if err != nil || len(after.Tiers) != 0 {
		t.Errorf("after the change: tiers %+v, error %v", after.Tiers, err)
	}
}

func TestUnknownModelNamesTheClosest(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]string{
		"anthropic/claude-sonnet-9.9x": "anthropic/claude-sonnet-",
		"openai/gpt4o":                 "the closest are openai/gpt-4o, openai/gpt-4,",
		"openai/gtp-5.2":               "the closest are openai/gpt-5.2",
		"opnai/gpt-5.2":                "the closest are openai/gpt-5.2",
	} {
		_, err := bundled(t).Price(ref)
		if !errors.Is(err, pricing.ErrUnknownModel) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an unknown model and %q", ref, err, want)
		}
	}
}

func TestIncompleteRowIsRefused(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]string{
		"no output price": `{"id": "m", "match": {"equals": "m"}, "context_window": 1000, "prices": {"input_mtok": 1}}`,
		"no window":       `{"id": "m", "match": {"equals": "m"}, "prices": {"input_mtok": 1, "output_mtok": 1}}`,
		"zero price":      `{"id": "m", "match": {"equals": "m"}, "context_window": 1000, "prices": {"input_mtok": 0, "output_mtok": 1}}`,
	} {
		book, err := pricing.Load(strings.NewReader(`{"version": "v", "source": "", "providers": [{"provider": "p", "models": [` + model + `]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := book.Price("p/m"); !errors.Is(err, pricing.ErrUnpriced) {
			t.Errorf("%s: got %v, want ErrUnpriced", name, err)
		}
	}
}

func TestOverrideWins(t *testing.T) {
	t.Parallel()
	over, err := pricing.Load(strings.NewReader(`{"version": "ours", "source": "a contract", "providers": [{"provider": "openai", "models": [
		{"id": "gpt-4o", "match": {"equals": "gpt-4o"}, "context_window": 128000, "prices": {"input_mtok": 2.000001, "output_mtok": 8}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := bundled(t).With(over).Price("openai/gpt-4o")
	if err != nil {
		t.Fatal(err)
	}
	if p.Version != "ours" || p.Rates.Input != 2_000_001 {
		t.Errorf("got %+v, want the override's row, exact to the last digit", p)
	}
	if _, err := bundled(t).With(over).Price("openai/gpt-4o-mini"); err != nil {
		t.Errorf("other rows are gone: %v", err)
	}
}

// What an operator gets wrong in an override is named; none of it is ignored,
// because it would be a price that silently does not count.
func TestBadBooksNameTheFault(t *testing.T) {
	t.Parallel()
	model := func(text string) string {
		return `{"version": "v", "source": "", "providers": [{"provider": "p", "models": [` + text + `]}]}`
	}
	for book, want := range map[string]string{
		`{"version": "v", "provider": []}`:                                                `unknown field "provider"`,
		`{"version": "v", "date": "21.8.2026"}`:                                           "is not a day as 2026-08-21",
		`{"version": "v"} {}`:                                                             "more text after byte",
		`{"providers": []}`:                                                               "version is missing",
		`{"version": "v", "providers": [{"models": []}]}`:                                 "providers[0].provider: is missing",
		model(`{"match": {"equals": "m"}}`):                                               "providers[0].models[0].id: is missing",
		model(`{"id": "m", "reads": ["video"]}`):                                          `models[0] (m): reads: "video" is not a kind of input: write "image" or "document"`,
		model(`{"id": "m", "max_output": -1}`):                                            "must not be negative",
		model(`{"id": "m", "free": true, "prices": {"input_mtok": 1, "output_mtok": 1}}`): "a free model has no prices",
		model(`{"id": "m", "match": {"regex": "("}}`):                                     "models[0] (m): match.regex",
		model(`{"id": "m", "match": {"or": [{"regex": "("}]}}`):                           "models[0] (m): match.regex",
		model(`{"id": "m", "match": {"equals": "m", "contains": "n"}}`):                   "more than one member",
		model(`{"id": "m", "prices": {"input_mtok": 1, "outptu_mtok": 1}}`):               `unknown field "outptu_mtok"`,
		model(`{"id": "m", "prices": [{"prices": {"cache_reed_mtok": 1}}]}`):              `unknown field "cache_reed_mtok"`,
		model(`{"id": "m", "prices": {"input_mtok": {"base": 1, "tier": []}}}`):           `unknown field "tier"`,
		model(`{"id": "m", "prices": {"input_mtok": -1}}`):                                "not an amount in USD",
		model(`{"id": "m", "prices": {"input_mtok": "cheap"}}`):                           "not an amount in USD",
	} {
		if _, err := pricing.Load(strings.NewReader(book)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", book, err, want)
		}
	}
}

// DeepSeek is cheaper at night, and the list has the night's price first.
func TestPricesByTheHourCountAsTheDearest(t *testing.T) {
	t.Parallel()
	p, err := bundled(t).Price("deepseek/deepseek-reasoner")
	if err != nil {
		t.Fatal(err)
	}
	if p.Rates.Input != 550_000 || p.Rates.CacheRead != 140_000 || p.Rates.Output != 2_190_000 {
		t.Errorf("rates %+v, want those of the day", p.Rates)
	}
}
