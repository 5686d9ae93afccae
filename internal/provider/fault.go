package provider

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// maxMessage bounds what is kept of a provider's error text, in bytes.
const maxMessage = 500

// Fault is what an error answer says, whatever its shape.
type Fault struct {
	Code    string // the provider's own code or type; may be empty
	Message string

	number  int    // a numeric code, as gateways report an upstream status
	kind    string // the type member beside the code
	details string // text of the whole answer, to find codes that hide in it

	retryAfter time.Duration // Google's RetryInfo, which stands in place of a header
}

// ParseFault reads an error body: {"error": {...}}, {"error": "text"},
// {"detail": ...}, {"message": ...}, a list of these, or plain text.
func ParseFault(body []byte) Fault {
	body = bytes.ToValidUTF8(bytes.TrimSpace(body), []byte("\uFFFD"))
	f := Fault{details: string(body)}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer map[string]json.RawMessage
	if json.Unmarshal(body, &outer) != nil {
		if !bytes.HasPrefix(body, []byte("<")) { // a proxy's HTML page tells nobody anything
			f.Message = clip(string(body))
		}
		return f
	}
	f.take(outer)
	var inner map[string]json.RawMessage
	if raw := outer["error"]; json.Unmarshal(raw, &inner) == nil {
		f.take(inner)
	} else if msg := text(raw); msg != "" {
		f.Message = clip(msg)
	}
	return f
}

// take reads the members of one level; the inner level wins.
func (f *Fault) take(m map[string]json.RawMessage) {
	for _, key := range []string{"detail", "message"} {
		if msg := text(m[key]); msg != "" {
			f.Message = clip(msg)
		}
	}
	if kind := first(text(m["type"]), text(m["status"])); kind != "" && kind != "error" {
		f.kind, f.Code = kind, kind // status is Google's word for it
	}
	f.retryAfter = max(f.retryAfter, retryInfo(m["details"]))
	var number int
	if json.Unmarshal(m["code"], &number) == nil && number != 0 {
		f.number = number
		if f.Code == "" {
			f.Code = strconv.Itoa(number)
		}
	} else if code := text(m["code"]); code != "" {
		f.Code = code
	}
}

// text is a JSON string, or the JSON itself where a list or object stands
// instead of one, or "".
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if len(raw) > 0 && (raw[0] == '[' || raw[0] == '{') {
		return string(raw)
	}
	return ""
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// retryInfo finds the wait in the details of a Google error.
func retryInfo(raw json.RawMessage) time.Duration {
	var details []struct {
		Delay string `json:"retryDelay"` // "34.07s"
	}
	if json.Unmarshal(raw, &details) != nil {
		return 0
	}
	var wait time.Duration
	for _, d := range details {
		if delay, err := time.ParseDuration(d.Delay); err == nil {
			wait = max(wait, delay)
		}
	}
	return min(wait, maxRetryAfter)
}

// clip bounds a message without splitting a rune.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// Class sorts a fault that came with an HTTP status: what the answer says in words
// first, then the header x-should-retry, then the status. See CLASSES.md.
func (f Fault) Class(status int, header http.Header) loop.ErrorClass {
	class := statusClass(status)
	for _, rule := range rules {
		if rule.fits(f, class) {
			return rule.class
		}
	}
	for _, row := range shouldRetry {
		if header.Get("X-Should-Retry") == row.header && class == row.from {
			return row.to
		}
	}
	return class
}

// InBand is the error for a fault inside a 200 answer. Once the answer has begun
// it has cost something, so the class is then always ErrorMidStream.
func (f Fault) InBand(begun bool) *loop.ModelError {
	e := &loop.ModelError{Class: noAnswer.class(), Status: http.StatusOK, Code: f.Code, Message: f.Message, RetryAfter: f.retryAfter}
	if e.Message == "" {
		e.Message = "the provider answered 200 with something that is no answer"
	}
	if begun {
		return e
	}
	status, known := kindStatus(strings.ToLower(f.kind))
	if !known && f.number >= 400 {
		status, known = f.number, true
	}
	if class := f.Class(status, nil); known || class == loop.ErrorQuota || class == loop.ErrorContext {
		e.Class = class
	}
	return e
}

func (f Fault) hasCode(codes []string) bool {
	return slices.Contains(codes, strings.ToLower(f.Code)) || slices.Contains(codes, strings.ToLower(f.kind))
}

// has reports whether text contains one of the words, which are in lower case.
func has(text string, words []string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}
