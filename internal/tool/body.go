package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// excerptBytes is how much of an error's body the model sees: enough for the
// reason that a service gives, too little for an HTML page.
const excerptBytes = 2 << 10

// body is what was read of an answer.
type body struct {
	bytes []byte
	size  int64  // as far as it is known
	cut   bool   // there was more
	media string // the type that the tool gave it
}

// trustedLength is the longest answer that room is made for at once, because it says how
// long it is. Others say so and send nothing.
const trustedLength = 64 << 10

// readBody reads at most limit bytes after decompression, so that a small
// answer cannot become a large one in memory.
func readBody(resp *http.Response, limit int64) (body, error) {
	var into bytes.Buffer
	into.Grow(int(min(max(resp.ContentLength, 0), limit, trustedLength)) + bytes.MinRead)
	_, err := into.ReadFrom(io.LimitReader(resp.Body, limit+1))
	read := into.Bytes()
	b := body{bytes: read, size: int64(len(read)), media: resp.Header.Get("Content-Type")}
	if err != nil {
		return b, fmt.Errorf("read the answer: %w", err)
	}
	if b.size > limit {
		b.bytes, b.cut = read[:limit], true
		b.size = max(b.size, resp.ContentLength)
	}
	return b, nil
}

// problem is what the model is told about a failed call.
type problem struct {
	Kind       string `json:"kind"`
	Status     int    `json:"status,omitempty"`
	Message    string `json:"message"`
	RetryAfter *int64 `json:"retry_after_seconds,omitempty"`
	Body       string `json:"body,omitempty"`
}

func (p problem) encode() string {
	if p.RetryAfter != nil {
		p.Message += fmt.Sprintf(" Retry after %d s.", *p.RetryAfter)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]problem{"error": p}); err != nil {
		panic(errors.Join(errors.New("a problem holds only text and numbers"), err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// excerpt is the beginning of a text.
func excerpt(text string) string {
	if len(text) <= excerptBytes {
		return text
	}
	return string(trimPartialRune([]byte(text[:excerptBytes]))) + "…"
}

// longestRetryAfter bounds what a tool may ask for; who waits has bounds of its own.
const longestRetryAfter = 24 * 60 * 60

// retryAfter reads the header in both of its forms, in whole seconds.
func retryAfter(h http.Header) *int64 {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return nil
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		at, err := http.ParseTime(value)
		if err != nil {
			return nil
		}
		seconds = max(0, int64(time.Until(at).Round(time.Second)/time.Second))
	}
	if seconds < 0 {
		return nil
	}
	return new(min(seconds, longestRetryAfter))
}

// inSeconds rounds a wait up to whole seconds.
func inSeconds(d time.Duration) *int64 { return new(int64((d + time.Second - 1) / time.Second)) }
