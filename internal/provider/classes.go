package provider

import (
	"net/http"
	"slices"

	"github.com/loopd/loopd/internal/loop"
)

// This file is the one table from what a provider did to loop.ErrorClass. The code
// that classifies reads it, and CLASSES.md is written from it; a test compares
// the two.

// statusClasses: what a bare HTTP status means. The first row that fits counts.
var statusClasses = []struct {
	from, to int
	class    loop.ErrorClass
	why      string
}{
	{401, 401, loop.ErrorAuth, "the key is wrong"},
	{402, 402, loop.ErrorQuota, "the account has no credit"},
	{403, 403, loop.ErrorAuth, "the key may not do this"},
	{408, 408, loop.ErrorNotStarted, "the request did not arrive in time"},
	{409, 409, loop.ErrorNotStarted, "something is locked at the moment"},
	{429, 429, loop.ErrorThrottle, "too many requests or tokens"},
	{503, 503, loop.ErrorThrottle, "overloaded, or in maintenance"},
	{529, 529, loop.ErrorThrottle, "Anthropic is overloaded"},
	{500, 599, loop.ErrorServer, "the provider failed, perhaps after it began"},
	{300, 399, loop.ErrorRequest, "a redirect, which is not followed: the key would go with it"},
	{0, 599, loop.ErrorRequest, "the same request fails again"},
}

// statusClass is the class of a bare status.
func statusClass(status int) loop.ErrorClass {
	for _, row := range statusClasses {
		if row.from <= status && status <= row.to {
			return row.class
		}
	}
	return loop.ErrorRequest
}

// rule is a class that an answer's own words give it, in spite of its status.
type rule struct {
	class  loop.ErrorClass
	after  []loop.ErrorClass // only where the status says one of these; nil = any
	codes  []string          // the code or the type is one of these, or
	words  []string          // the message has one of these, or
	hidden []string          // the whole answer has one of these
	why    string
}

// refusals are the classes in which prose may decide: there alone providers have
// no code for what went wrong.
var refusals = []loop.ErrorClass{loop.ErrorRequest, loop.ErrorAuth}

// rules are tried in this order; the first that fits decides. Everything is in
// lower case. "Quota" as a word is missing on purpose: Gemini and Azure use it for
// limits that pass in a minute.
var rules = []rule{
	{
		class: loop.ErrorQuota,
		codes: []string{
			"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active",
			"enforced_spend_limit_reached", "insufficient_balance", "exceeded_current_quota_error",
		},
		why: "no credit, whatever the status",
	},
	{
		class: loop.ErrorQuota, after: refusals,
		words: []string{"credit balance is too low", "specified api usage limits"},
		why:   "Anthropic reports an empty account as a 400",
	},
	{
		class: loop.ErrorQuota, after: []loop.ErrorClass{loop.ErrorThrottle},
		hidden: []string{"enforced_spend_limit"},
		why:    "a monthly cap looks like a rate limit, but does not pass",
	},
	{
		class: loop.ErrorContext,
		codes: []string{
			"context_length_exceeded", "too_many_prompt_tokens", "exceed_context_size_error", "model_context_window_exceeded",
		},
		why: "the prompt is larger than the window",
	},
	{
		class: loop.ErrorContext, after: refusals,
		words: []string{
			"prompt is too long", "prompt too long", "input is too long", "maximum context length", "max context length",
			"maximum prompt length", "context window", "context length", "context size", "context limit",
			"length of all messages is too long", "input token count", "reduce the length of the messages",
		},
		why: "most providers have no code for it, and each its own words",
	},
	{
		class: loop.ErrorServer, after: []loop.ErrorClass{loop.ErrorRequest},
		codes: []string{"tool_use_failed"},
		why:   "Groq refuses what its own model wrote: the tokens are spent, and the same request may succeed",
	},
	{
		class: loop.ErrorAuth, after: refusals,
		words: []string{"incorrect api key", "invalid api key", "api key not valid"},
		why:   "xAI and Gemini report a wrong key as a 400",
	},
}

// fits reports whether the rule decides about a fault whose status says class.
func (r rule) fits(f Fault, class loop.ErrorClass) bool {
	if r.after != nil && !slices.Contains(r.after, class) {
		return false
	}
	return f.hasCode(r.codes) || has(f.Message, r.words) || has(f.details, r.hidden)
}

// shouldRetry: what the header x-should-retry turns a class into. It wins over the
// status, but not over the rules, and it makes no key right.
var shouldRetry = []struct {
	header   string
	from, to loop.ErrorClass
}{
	{"false", loop.ErrorThrottle, loop.ErrorQuota},
	{"false", loop.ErrorServer, loop.ErrorRequest},
	{"false", loop.ErrorNotStarted, loop.ErrorRequest},
	{"true", loop.ErrorRequest, loop.ErrorNotStarted},
}

// kindStatuses: the status with which providers send an error type outside of
// streams. Inside a 200 answer the type stands alone.
var kindStatuses = []struct {
	status int
	kinds  []string
}{
	{529, []string{"overloaded_error"}},
	{http.StatusServiceUnavailable, []string{"unavailable"}},
	{http.StatusTooManyRequests, []string{"rate_limit_error", "rate_limit_exceeded", "tokens", "requests", "resource_exhausted"}},
	{http.StatusGatewayTimeout, []string{"deadline_exceeded"}},
	{http.StatusInternalServerError, []string{"api_error", "server_error", "timeout_error", "internal"}},
	{http.StatusUnauthorized, []string{"authentication_error", "unauthenticated"}},
	{http.StatusForbidden, []string{"permission_error", "permission_denied"}},
	{http.StatusPaymentRequired, []string{"billing_error"}},
	{http.StatusNotFound, []string{"not_found_error", "not_found"}},
	{http.StatusBadRequest, []string{"invalid_request_error", "request_too_large", "invalid_argument", "failed_precondition"}},
}

// kindStatus is the status that belongs to an error type.
func kindStatus(kind string) (status int, known bool) {
	for _, row := range kindStatuses {
		if slices.Contains(row.kinds, kind) {
			return row.status, true
		}
	}
	return 0, false
}

// breakage is how an exchange ended without an answer and without an error answer.
type breakage int

const (
	noConnection breakage = iota
	brokeBefore
	brokeInside
	silent
	endless
	deadlinePassed
	givenUp
	noAnswer
	webPage
	unreadable
)

// breakages: the class of each, in the order of the constants.
var breakages = []struct {
	class loop.ErrorClass
	what  string
}{
	noConnection:   {loop.ErrorNotStarted, "no connection: name not found, refused, TLS failed"},
	brokeBefore:    {loop.ErrorServer, "the connection broke after sending, before the headers"},
	brokeInside:    {loop.ErrorMidStream, "the connection broke inside the answer"},
	silent:         {loop.ErrorTimeout, "no headers in FirstByteTimeout, no data after them in ThinkTimeout, no line in IdleTimeout"},
	endless:        {loop.ErrorTimeout, "not finished in CallTimeout, however busy"},
	deadlinePassed: {loop.ErrorTimeout, "the caller's deadline passed"},
	givenUp:        {loop.ErrorCancelled, "the caller gave the call up"},
	noAnswer:       {loop.ErrorMidStream, "a 200 answer that ends early, or whose error or content makes no sense"},
	webPage:        {loop.ErrorRequest, "a 200 answer that is a web page: the base URL is wrong"},
	unreadable:     {loop.ErrorInternal, "an answer above MaxResponseBytes, an event above 8 MiB, a compression that loopd cannot undo: it was paid for and would come again"},
}

func (b breakage) class() loop.ErrorClass { return breakages[b].class }
