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
	"unicode/utf8"
)

// excerptBytes is how much of an error's body the model sees: enough for the
// reason that a service gives, too little for an HTML page.
const excerptBytes = 2 << 10

// body is what was read of an answer.
type body struct {
	bytes []byte
	size  int64 // as far as it is known
	cut   bool  // there was more
}

// readBody reads at most limit bytes after decompression, so that a small
// answer cannot become a large one in memory.
func readBody(resp *http.Response, limit int64) (body, error) {
	read, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	b := body{bytes: read, size: int64(len(read))}
	if err != nil {
		return b, fmt.Errorf("read the answer: %w", err)
	}
	if b.size > limit {
		b.bytes, b.cut = read[:limit], true
		b.size = max(b.size, resp.ContentLength)
	}
	return b, nil
}

// text is the body as valid UTF-8 without NUL. What had to be replaced is said
// in front of it.
func (b body) text() string {
	raw := b.bytes
	if b.cut {
		raw = trimPartialRune(raw)
	}
	if utf8.Valid(raw) && bytes.IndexByte(raw, 0) < 0 {
		return string(raw)
	}
	text := strings.ReplaceAll(strings.ToValidUTF8(string(raw), "\uFFFD"), "\x00", "\uFFFD")
	return fmt.Sprintf("[loopd: the answer is not plain UTF-8 text; each \uFFFD stands for bytes that are not]\n%s", text)
}

// trimPartialRune drops the beginning of a rune that a cut went through.
func trimPartialRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		tail := b[len(b)-i:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
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

// retryAfter reads the header in both of its forms, in whole seconds.
func retryAfter(h http.Header) *int64 {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return nil
	}
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds >= 0 {
		return &seconds
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return nil
	}
	seconds := max(0, int64(time.Until(at).Round(time.Second)/time.Second))
	return &seconds
}
