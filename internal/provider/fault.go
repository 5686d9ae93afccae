package provider

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
	details string // lower-case text of the whole answer, to find codes that hide in it
}

// ParseFault reads an error body: {"error": {...}}, {"error": "text"},
// {"detail": ...}, {"message": ...}, a list of these, or plain text.
func ParseFault(body []byte) Fault {
	body = bytes.ToValidUTF8(bytes.TrimSpace(body), []byte("\uFFFD"))
	f := Fault{details: strings.ToLower(string(body))}
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
	if kind := text(m["type"]); kind != "" && kind != "error" {
		f.kind, f.Code = kind, kind
	}
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

// Class sorts a fault that came with an HTTP status. Codes decide before the
// status. Prose decides only where providers have no code: each words a prompt
// that is too long in its own way, and one reports an empty account as a 400.
func (f Fault) Class(status int, header http.Header) loop.ErrorClass {
	class := statusClass(status)
	switch {
	case f.hasCode(quotaCodes) || f.says(class, quotaWords):
		return loop.ErrorQuota
	case class == loop.ErrorThrottle && strings.Contains(f.details, "enforced_spend_limit"):
		return loop.ErrorQuota // a monthly cap looks like a rate limit, but does not pass
	case f.hasCode(contextCodes) || f.says(class, contextWords):
		return loop.ErrorContext
	case class == loop.ErrorRequest && f.hasCode([]string{"tool_use_failed"}):
		// The server refused what its model wrote, not what loopd sent: the same
		// request may well succeed, and the tokens were spent.
		return loop.ErrorServer
	case f.says(class, keyWords):
		return loop.ErrorAuth
	}
	switch header.Get("X-Should-Retry") {
	case "false":
		switch class {
		case loop.ErrorThrottle:
			return loop.ErrorQuota
		case loop.ErrorServer, loop.ErrorNotStarted:
			return loop.ErrorRequest
		}
	case "true":
		if class == loop.ErrorRequest {
			return loop.ErrorNotStarted
		}
	}
	return class
}

// InBand is the error for a fault inside a 200 answer. Once the answer has begun
// it has cost something, so the class is then always ErrorMidStream.
func (f Fault) InBand(begun bool) *loop.ModelError {
	e := &loop.ModelError{Class: loop.ErrorMidStream, Status: http.StatusOK, Code: f.Code, Message: f.Message}
	if e.Message == "" {
		e.Message = "the provider answered 200 with something that is no answer"
	}
	if begun {
		return e
	}
	status, known := typeStatus(f.kind)
	if !known && f.number >= 400 {
		status, known = f.number, true
	}
	if class := f.Class(status, nil); known || class == loop.ErrorQuota || class == loop.ErrorContext {
		e.Class = class
	}
	return e
}

// statusClass is the table from HTTP status to class.
func statusClass(status int) loop.ErrorClass {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict:
		return loop.ErrorNotStarted
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529:
		return loop.ErrorThrottle
	case http.StatusPaymentRequired:
		return loop.ErrorQuota
	case http.StatusUnauthorized, http.StatusForbidden:
		return loop.ErrorAuth
	}
	if status >= 500 {
		return loop.ErrorServer
	}
	return loop.ErrorRequest
}

// typeStatus is the status that a provider sends an error type with outside of
// streams.
func typeStatus(kind string) (status int, known bool) {
	switch kind {
	case "overloaded_error":
		return 529, true
	case "rate_limit_error", "rate_limit_exceeded", "tokens", "requests":
		return http.StatusTooManyRequests, true
	case "api_error", "server_error", "timeout_error":
		return http.StatusInternalServerError, true
	case "authentication_error":
		return http.StatusUnauthorized, true
	case "permission_error":
		return http.StatusForbidden, true
	case "billing_error":
		return http.StatusPaymentRequired, true
	case "not_found_error":
		return http.StatusNotFound, true
	case "invalid_request_error", "request_too_large":
		return http.StatusBadRequest, true
	}
	return 0, false
}

// The codes and words below are matched in lower case. "Quota" as a word is
// missing on purpose: two providers use it for limits that pass in a minute.
var (
	quotaCodes = []string{
		"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active",
		"enforced_spend_limit_reached", "insufficient_balance",
	}
	quotaWords   = []string{"credit balance is too low", "specified api usage limits"}
	contextCodes = []string{
		"context_length_exceeded", "too_many_prompt_tokens", "exceed_context_size_error", "model_context_window_exceeded",
	}
	contextWords = []string{
		"prompt is too long", "prompt too long", "input is too long", "maximum context length", "max context length",
		"maximum prompt length", "context window", "context length", "context size", "context limit",
		"length of all messages is too long", "input token count", "reduce the length of the messages",
	}
	keyWords = []string{"incorrect api key", "invalid api key", "api key not valid"}
)

func (f Fault) hasCode(codes []string) bool {
	return slices.Contains(codes, strings.ToLower(f.Code)) || slices.Contains(codes, strings.ToLower(f.kind))
}

// says looks for words in refusals of the request itself, where alone prose decides.
func (f Fault) says(class loop.ErrorClass, words []string) bool {
	if class != loop.ErrorRequest && class != loop.ErrorAuth {
		return false
	}
	message := strings.ToLower(f.Message)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(message, w) })
}
