package provider

import (
	"net/http"
	"strconv"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// RateOf reads the rate limit headers of Anthropic (anthropic-ratelimit-*, with
// times) and of OpenAI and its imitators (x-ratelimit-*, with durations such as
// "6m0s", "120ms" or plain seconds). What is missing or odd was not said.
func RateOf(h http.Header, now time.Time) loop.RateReport {
	report := loop.RateReport{
		Requests: window(h, now, "Anthropic-Ratelimit-Requests-", "Limit", "Remaining", "Reset"),
		Tokens:   window(h, now, "Anthropic-Ratelimit-Tokens-", "Limit", "Remaining", "Reset"),
	}
	if report.Requests.Reset.IsZero() {
		report.Requests = window(h, now, "X-Ratelimit-", "Limit-Requests", "Remaining-Requests", "Reset-Requests")
	}
	if report.Tokens.Reset.IsZero() {
		report.Tokens = window(h, now, "X-Ratelimit-", "Limit-Tokens", "Remaining-Tokens", "Reset-Tokens")
	}
	return report
}

// window reads one limit. Without a limit, a remainder and a reset it is worth
// nothing.
func window(h http.Header, now time.Time, prefix, limit, remaining, reset string) loop.RateWindow {
	most, err1 := strconv.ParseInt(h.Get(prefix+limit), 10, 64)
	left, err2 := strconv.ParseInt(h.Get(prefix+remaining), 10, 64)
	at, ok := resetAt(h.Get(prefix+reset), now)
	if err1 != nil || err2 != nil || !ok || most <= 0 || left < 0 {
		return loop.RateWindow{}
	}
	return loop.RateWindow{Limit: most, Remaining: min(left, most), Reset: at}
}

// resetAt reads an RFC 3339 time, a Go-like duration or a number of seconds.
func resetAt(s string, now time.Time) (time.Time, bool) {
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return at, true
	}
	wait, err := time.ParseDuration(s)
	if err != nil {
		wait = number(s, time.Second)
		if wait == 0 && s != "0" {
			return time.Time{}, false
		}
	}
	return now.Add(min(max(wait, 0), maxRetryAfter)), true
}
