package loop_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"pgregory.net/rapid"
)

func TestUSDString(t *testing.T) {
	t.Parallel()
	for want, u := range map[string]loop.USD{
		"0": 0, "1": loop.OneUSD, "0.02": 20 * loop.MilliUSD, "0.000000000001": loop.PicoUSD, "-0.5": -loop.OneUSD / 2,
		"0.0000003": 300 * loop.NanoUSD, "12.3456": 123456 * 100 * loop.MicroUSD,
		"9223372.036854775807": math.MaxInt64, "-9223372.036854775808": math.MinInt64,
	} {
		if got := u.String(); got != want {
			t.Errorf("USD(%d) is written %q, want %q", int64(u), got, want)
		}
	}
}

func TestParseUSD(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]loop.USD{
		"0": 0, "0.50": loop.OneUSD / 2, "00.5": loop.OneUSD / 2, "4200": 4200 * loop.OneUSD, "0.000000000001": 1,
		"9223372.036854775807": math.MaxInt64,
	} {
		if got, err := loop.ParseUSD(text); err != nil || got != want {
			t.Errorf("ParseUSD(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", "1 000", "0x1", " 1", "1 ", "NaN", "1.2.3", "٣",
		"0.0000000000001", "9223372.036854775808", "92233720368547758080", strings.Repeat("9", 100),
	} {
		if got, err := loop.ParseUSD(text); err == nil {
			t.Errorf("ParseUSD(%q) = %s, want an error", text, got)
		} else if len(text) > 0 && !strings.Contains(err.Error(), text) {
			t.Errorf("the error for %q does not name it: %v", text, err)
		}
	}
}

// TestUSDSurvivesText: every amount, whatever its size and sign, comes back exact.
func TestUSDSurvivesText(t *testing.T) {
	t.Parallel()
	amount := rapid.Int64Range(-math.MaxInt64, math.MaxInt64)
	rapid.Check(t, func(t *rapid.T) {
		u := loop.USD(amount.Draw(t, "pico-USD"))
		text, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		var back loop.USD
		if err := json.Unmarshal(text, &back); err != nil || back != u {
			t.Fatalf("%d is written %s and read as %d: %v", u, text, back, err)
		}
	})
	for _, bad := range []string{`""`, `"-"`, `"--1"`, `"1e3"`, `1`, `{}`} {
		var u loop.USD
		if err := json.Unmarshal([]byte(bad), &u); err == nil {
			t.Errorf("%s is read as %s", bad, u)
		}
	}
}

func TestUSDFloat(t *testing.T) {
	t.Parallel()
	if got := (loop.OneUSD / 4).Float(); got != 0.25 {
		t.Errorf("a quarter is %v", got)
	}
}

// TestCostIsWrittenAsItsTagsSay: what writes it by hand says what encoding/json would.
func TestCostIsWrittenAsItsTagsSay(t *testing.T) {
	t.Parallel()
	type byTags loop.Cost
	amount := rapid.Int64()
	rapid.Check(t, func(t *rapid.T) {
		draw := func() loop.USD { return loop.USD(amount.Draw(t, "pico-USD")) }
		cost := loop.Cost{Input: draw(), CacheRead: draw(), CacheWrite: draw(), Output: draw()}
		got, err := json.Marshal(cost)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(byTags(cost))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}
