package provider

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds what a header may ask for. Above an hour loopd gives up
// anyway; the bound only keeps sums from overflowing.
const maxRetryAfter = 24 * time.Hour

// RetryAfter is how long a provider asked to wait: Retry-After-Ms in
// milliseconds, Retry-After in seconds or as an HTTP date. Where both are given
// the longer wait counts, because one service sends a zero beside the truth. It
// is never negative, and 0 when nothing was said.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	wait := max(
		number(h.Get("Retry-After-Ms"), time.Millisecond),
		number(h.Get("Retry-After"), time.Second),
	)
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		wait = max(wait, at.Sub(now))
	}
	return min(max(wait, 0), maxRetryAfter)
}

// number reads a non-negative decimal number of units.
func number(s string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(n > 0) { // the negation also catches NaN
		return 0
	}
	return time.Duration(min(n*float64(unit), float64(maxRetryAfter)))
}
