package provider

import (
	"net/http"
	"strconv"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// RateOf reads the rate limit headers of Anthropic (anthropic-ratelimit-*, with
// times) and of OpenAI and its imitators (x-ratelimit-*, with durations such as
// "6m0s", "120ms" or plain seconds). Of several limits on tokens the one with the
// least left counts, because it is the one that refuses. What is missing or odd
// was not said: Azure sends no limit, or -1.
func RateOf(h http.Header, now time.Time) loop.RateReport {
	var report loop.RateReport
	for _, affixes := range [][2]string{{"Anthropic-Ratelimit-Requests-", ""}, {"X-Ratelimit-", "-Requests"}} {
		report.Requests = tighter(report.Requests, window(h, now, affixes[0], affixes[1]))
	}
	for _, affixes := range [][2]string{
		{"Anthropic-Ratelimit-Tokens-", ""}, {"Anthropic-Ratelimit-Input-Tokens-", ""}, {"Anthropic-Ratelimit-Output-Tokens-", ""},
		{"X-Ratelimit-", "-Tokens"},
	} {
		report.Tokens = tighter(report.Tokens, window(h, now, affixes[0], affixes[1]))
	}
	return report
}

// tighter is the window with the smaller share left.
func tighter(a, b loop.RateWindow) loop.RateWindow {
	if a.Limit == 0 || b.Limit > 0 && float64(b.Remaining)/float64(b.Limit) < float64(a.Remaining)/float64(a.Limit) {
		return b
	}
	return a
}

// window reads one limit, whose headers have names of a beginning and an end. Without a
// limit, a remainder and a reset it is worth nothing.
func window(h http.Header, now time.Time, begin, end string) loop.RateWindow {
	limit := h.Get(begin + "Limit" + end)
	if limit == "" { // most servers have few of the headers, if any
		return loop.RateWindow{}
	}
	most, err1 := strconv.ParseInt(limit, 10, 64)
	left, err2 := strconv.ParseInt(h.Get(begin+"Remaining"+end), 10, 64)
	at, ok := resetAt(h.Get(begin+"Reset"+end), now)
	if err1 != nil || err2 != nil || !ok || most <= 0 || left < 0 {
		return loop.RateWindow{}
	}
	return loop.RateWindow{Limit: most, Remaining: min(left, most), Reset: at}
}

// resetAt reads an RFC 3339 time, a Go-like duration or a number of seconds. A
// number above a day is no wait: some gateways send the time of day.
func resetAt(s string, now time.Time) (time.Time, bool) {
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return at, true
	}
	wait, err := time.ParseDuration(s)
	if err != nil {
		wait, err = time.ParseDuration(s + "s")
	}
	if err != nil || wait < 0 || wait > maxRetryAfter {
		return time.Time{}, false
	}
	return now.Add(wait), true
}
