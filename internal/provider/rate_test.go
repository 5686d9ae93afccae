package provider_test

import (
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// TestRateOf uses header sets as they were recorded, and what people reported of
// Azure (openai/openai-dotnet issue 838, EvolvingPrograms/oaib issue 11).
func TestRateOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatalf("parse: %v", err)
		}
		return at
	}
	openai := map[string]string{
		"x-ratelimit-limit-requests": "5000", "x-ratelimit-remaining-requests": "4999", "x-ratelimit-reset-requests": "12ms",
		"x-ratelimit-limit-tokens": "800000", "x-ratelimit-remaining-tokens": "799984", "x-ratelimit-reset-tokens": "0s",
	}
	with := func(name, value string) map[string]string {
		h := maps.Clone(openai)
		h[name] = value
		return h
	}
	requests := loop.RateWindow{Limit: 5000, Remaining: 4999, Reset: now.Add(12 * time.Millisecond)}
	tokens := func(reset time.Duration) loop.RateReport {
		return loop.RateReport{Requests: requests, Tokens: loop.RateWindow{Limit: 800000, Remaining: 799984, Reset: now.Add(reset)}}
	}
	for _, c := range []struct {
		name   string
		header map[string]string
		want   loop.RateReport
	}{
		{"none", nil, loop.RateReport{}},
		{"anthropic", map[string]string{
			"anthropic-ratelimit-input-tokens-limit": "2000000", "anthropic-ratelimit-input-tokens-remaining": "2000000", "anthropic-ratelimit-input-tokens-reset": "2025-12-18T23:33:12Z",
			"anthropic-ratelimit-output-tokens-limit": "400000", "anthropic-ratelimit-output-tokens-remaining": "400000", "anthropic-ratelimit-output-tokens-reset": "2025-12-18T23:33:12Z",
			"anthropic-ratelimit-requests-limit": "4000", "anthropic-ratelimit-requests-remaining": "3999", "anthropic-ratelimit-requests-reset": "2025-12-18T23:33:12Z",
			"anthropic-ratelimit-tokens-limit": "2400000", "anthropic-ratelimit-tokens-remaining": "2400000", "anthropic-ratelimit-tokens-reset": "2025-12-18T23:33:12Z",
		}, loop.RateReport{
			Requests: loop.RateWindow{Limit: 4000, Remaining: 3999, Reset: at("2025-12-18T23:33:12Z")},
			Tokens:   loop.RateWindow{Limit: 2400000, Remaining: 2400000, Reset: at("2025-12-18T23:33:12Z")},
		}},
		{"anthropic 429: the input is what is used up", map[string]string{
			"anthropic-ratelimit-input-tokens-limit": "200000", "anthropic-ratelimit-input-tokens-remaining": "0", "anthropic-ratelimit-input-tokens-reset": "2025-06-02T15:15:48Z",
			"anthropic-ratelimit-output-tokens-limit": "80000", "anthropic-ratelimit-output-tokens-remaining": "80000",
			"anthropic-ratelimit-requests-limit": "4000", "anthropic-ratelimit-requests-remaining": "4000",
			"anthropic-ratelimit-tokens-limit": "280000", "anthropic-ratelimit-tokens-remaining": "80000", "anthropic-ratelimit-tokens-reset": "2025-06-02T15:14:45Z",
		}, loop.RateReport{Tokens: loop.RateWindow{Limit: 200000, Remaining: 0, Reset: at("2025-06-02T15:15:48Z")}}},
		{"openai", openai, tokens(0)},
		{"minutes and seconds", with("x-ratelimit-reset-tokens", "6m0s"), tokens(6 * time.Minute)},
		{"fractions", with("x-ratelimit-reset-tokens", "7.66s"), tokens(7660 * time.Millisecond)},
		{"plain seconds", with("x-ratelimit-reset-tokens", "59.5"), tokens(59500 * time.Millisecond)},
		{"zero", with("x-ratelimit-reset-tokens", "0"), tokens(0)},
		{"a time", with("x-ratelimit-reset-tokens", "2026-11-30T12:00:30Z"), tokens(30 * time.Second)},
		{"the time of day in seconds", with("x-ratelimit-reset-tokens", "1796040000"), loop.RateReport{Requests: requests}},
		{"negative", with("x-ratelimit-reset-tokens", "-1"), loop.RateReport{Requests: requests}},
		{"no number", with("x-ratelimit-reset-tokens", "NaN"), loop.RateReport{Requests: requests}},
		{"word", with("x-ratelimit-reset-tokens", "soon"), loop.RateReport{Requests: requests}},
		{"too much left", with("x-ratelimit-remaining-tokens", "900000"), loop.RateReport{
			Requests: requests, Tokens: loop.RateWindow{Limit: 800000, Remaining: 800000, Reset: now},
		}},
		{"no limit", with("x-ratelimit-limit-tokens", ""), loop.RateReport{Requests: requests}},
		{"limit zero", with("x-ratelimit-limit-tokens", "0"), loop.RateReport{Requests: requests}},
		{"absurd", with("x-ratelimit-limit-tokens", "99999999999999999999"), loop.RateReport{Requests: requests}},
		{"azure: only what is left", map[string]string{"x-ratelimit-remaining-requests": "79", "x-ratelimit-remaining-tokens": "61353"}, loop.RateReport{}},
		{"azure: minus one", map[string]string{
			"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0",
		}, loop.RateReport{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			for name, value := range c.header {
				h.Set(name, value)
			}
			if diff := cmp.Diff(c.want, provider.RateOf(h, now)); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}
