package provider

import (
	"fmt"
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
	for _, name := range []string{"Anthropic-Ratelimit-Requests-%s", "X-Ratelimit-%s-Requests"} {
		report.Requests = tighter(report.Requests, window(h, now, name))
	}
	for _, name := range []string{
		"Anthropic-Ratelimit-Tokens-%s", "Anthropic-Ratelimit-Input-Tokens-%s", "Anthropic-Ratelimit-Output-Tokens-%s", "X-Ratelimit-%s-Tokens",
	} {
		report.Tokens = tighter(report.Tokens, window(h, now, name))
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

// window reads one limit. Without a limit, a remainder and a reset it is worth
// nothing.
func window(h http.Header, now time.Time, name string) loop.RateWindow {
	most, err1 := strconv.ParseInt(h.Get(fmt.Sprintf(name, "Limit")), 10, 64)
	left, err2 := strconv.ParseInt(h.Get(fmt.Sprintf(name, "Remaining")), 10, 64)
	at, ok := resetAt(h.Get(fmt.Sprintf(name, "Reset")), now)
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
