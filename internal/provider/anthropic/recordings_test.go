package anthropic_test

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// wants says what every recording in testdata means. It was checked against the
// recordings by a second reader, which shares no code with the adapter.
var wants = map[string]providertest.Want{
	"composed/missing-usage-stream": {Finish: loop.FinishDone, Text: "Hello", UsageMissing: true},
	"composed/quoted-400-credit":    {Class: loop.ErrorQuota, Code: "invalid_request_error"},
	"composed/truncated-call-stream": {Finish: loop.FinishTruncated, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 424, Output: 109},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_017cWttjFBXZWw8LkJbhpqm1", Name: "weather", Args: `{"location": "F`},
		}},
	"cache-read": {Finish: loop.FinishDone, Text: "Based on the refund policy for",
		Usage: loop.Usage{InputUncached: 6, CacheRead: 1069, CacheWrite5m: 85, Output: 110}},
	"cache-write": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 7, CacheWrite5m: 1069, Output: 60},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01JA8S35SNy1ruX8gAXgb3Y6", Name: "lookup_refund_policy", Args: `{"order_id":"order-123"}`},
		}},
	"duplicate-message-start": {Finish: loop.FinishDone, Text: "Hello, World!",
		Usage: loop.Usage{InputUncached: 17, Output: 227}},
	"error-400-parameter":       {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"error-400-prompt-too-long": {Class: loop.ErrorContext, Code: "invalid_request_error"},
	"error-401":                 {Class: loop.ErrorAuth, Code: "authentication_error"},
	"error-404-model":           {Class: loop.ErrorRequest, Code: "not_found_error"},
	"fallback-model": {Finish: loop.FinishDone, Text: "The printing press was invente",
		Usage: loop.Usage{InputUncached: 412, Output: 264}},
	"max-tokens-stream": {Finish: loop.FinishTruncated, Text: "Here are all 50 U.S. states in",
		Usage: loop.Usage{InputUncached: 15, Output: 50}},
	"max-tokens": {Finish: loop.FinishTruncated, Text: "Here are all 50 U.S. states in",
		Usage: loop.Usage{InputUncached: 15, Output: 50}},
	"output-token-details": {Finish: loop.FinishDone, Text: "2 + 2 = 4",
		Usage: loop.Usage{InputUncached: 13, Output: 11}},
	"parallel-tools-stream-1": {Finish: loop.FinishToolCalls, Text: "I'll add and multiply the numb",
		Usage: loop.Usage{InputUncached: 502, Output: 137},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01UYxUYC2zRPY8wiutnF48eP", Name: "add", Args: `{"a": 2, "b": 3}`},
			{ProviderID: "toolu_01VaRx1jpWCvPhi7L4kywAcd", Name: "multiply", Args: `{"a": 2, "b": 3}`},
		}},
	"parallel-tools-stream-2": {Finish: loop.FinishDone, Text: "The results are:\n- 2 + 3 = 5\n-",
		Usage: loop.Usage{InputUncached: 700, Output: 31}},
	"parallel-tools": {Finish: loop.FinishToolCalls, Text: "I'll get the weather and eleva",
		Usage: loop.Usage{InputUncached: 612, Output: 101},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01BBTvQnxdxk7vPHD1ytXyGs", Name: "get_weather", Args: `{"city":"Denver"}`},
			{ProviderID: "toolu_017Q9pGQ9Hx126pyyLLnVqJV", Name: "get_elevation", Args: `{"city":"Denver"}`},
		}},
	"pause-turn-stream": {Finish: loop.FinishPaused, Text: "I'll run these searches one at", Reasoning: true,
		Usage: loop.Usage{InputUncached: 404500, Output: 682, Reasoning: 261}},
	"quoted-400-unpaired-tool-use": {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"quoted-413":                   {Class: loop.ErrorRequest, Code: "request_too_large"},
	"quoted-429-no-retry-after":    {Class: loop.ErrorThrottle, Code: "rate_limit_error"},
	"quoted-429":                   {Class: loop.ErrorThrottle, Code: "rate_limit_error", RetryAfter: 16 * time.Second},
	"quoted-500":                   {Class: loop.ErrorServer, Code: "api_error"},
	"quoted-529":                   {Class: loop.ErrorThrottle, Code: "overloaded_error"},
	"quoted-stream-overloaded":     {Class: loop.ErrorMidStream, Code: "overloaded_error"},
	"redacted-thinking-1": {Finish: loop.FinishDone, Text: "I notice that your message app",
		Usage: loop.Usage{InputUncached: 92, Output: 196}},
	"redacted-thinking-2": {Finish: loop.FinishDone, Text: "That message appeared to be an",
		Usage: loop.Usage{InputUncached: 168, Output: 232}},
	"redacted-thinking-stream": {Finish: loop.FinishDone, Text: "I notice that you've sent what",
		Usage: loop.Usage{InputUncached: 92, Output: 189}},
	"refusal-stream": {Finish: loop.FinishRefused, Text: "-", Refusal: "This request triggered restrictions on violative cyber content and was blocked under Anthropic's Usage Policy.",
		Usage: loop.Usage{InputUncached: 18, Output: 5}},
	"refusal": {Finish: loop.FinishRefused, Text: "-", Refusal: "This request triggered restrictions on violative cyber content and was blocked under Anthropic's Usage Policy.",
		Usage: loop.Usage{InputUncached: 18, Output: 5}},
	"server-tool": {Finish: loop.FinishDone, Text: "3 * 12390 = **37,170**",
		Usage: loop.Usage{InputUncached: 4612, Output: 80}},
	"stop-sequence": {Finish: loop.FinishDone, Text: "The beautiful city of ",
		Usage: loop.Usage{InputUncached: 32, Output: 5}},
	"text-stream": {Finish: loop.FinishDone, Text: "Hello",
		Usage: loop.Usage{InputUncached: 10, Output: 4}},
	"text": {Finish: loop.FinishDone, Text: "4",
		Usage: loop.Usage{InputUncached: 14, Output: 5}},
	"thinking-roundtrip-stream-1": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 424, Output: 109},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_017cWttjFBXZWw8LkJbhpqm1", Name: "weather", Args: `{"location": "Florence, Italy"}`},
		}},
	"thinking-roundtrip-stream-2": {Finish: loop.FinishDone, Text: "The current weather in Florenc",
		Usage: loop.Usage{InputUncached: 548, Output: 34}},
	"thinking-tool-stream": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 598, Output: 39, Reasoning: 53},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01825dXWLSoJwCst1qTsiWdb", Name: "fixed_version", Args: "{}"},
		}},
	"thinking": {Finish: loop.FinishDone, Text: "\n\n2 + 2 = **4**", Reasoning: true,
		Usage: loop.Usage{InputUncached: 31, Output: 30}},
	"tool-error-result": {Finish: loop.FinishToolCalls, Text: "Let me correct that - the para",
		Usage: loop.Usage{InputUncached: 1122, Output: 74},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01GgM32pcJgjKXqUgpjs9XFT", Name: "stock_lookup", Args: `{"symbol":"AAPL"}`},
		}},
	"tool-no-args-stream": {Finish: loop.FinishToolCalls, Text: "I'll update the issue list for",
		Usage: loop.Usage{InputUncached: 565, Output: 48},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01QE1WLsSVp5hy5Q3GmGTmjP", Name: "updateIssueList", Args: "{}"},
		}},
	"tool-use-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 543, Output: 40},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_01CzN6riCPqw4pVSuTd9Dwn7", Name: "pelican_name_generator", Args: "{}"},
		}},
	"tool-use": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 558, Output: 36},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_0154mkohcYqfkMtfLveNfQse", Name: "get_file", Args: "{}"},
		}},
}

// traits names the recording that shows each thing this wire can do.
var traits = map[providertest.Trait]string{
	providertest.TraitText:          "text-stream",
	providertest.TraitOneCall:       "tool-use-stream",
	providertest.TraitParallelCalls: "parallel-tools-stream-1",
	providertest.TraitStreamedCall:  "thinking-roundtrip-stream-1",
	providertest.TraitReasoning:     "thinking-tool-stream",
	providertest.TraitCache:         "cache-read",
	providertest.TraitRefusal:       "refusal-stream",
	providertest.TraitTruncatedCall: "composed/truncated-call-stream",
	providertest.TraitPaused:        "pause-turn-stream",
	providertest.TraitMissingUsage:  "composed/missing-usage-stream",
	providertest.TraitStreamError:   "quoted-stream-overloaded",
	providertest.TraitContext:       "error-400-prompt-too-long",
	providertest.TraitBadRequest:    "error-400-parameter",
	providertest.TraitNoModel:       "error-404-model",
	providertest.TraitWrongKey:      "error-401",
	providertest.TraitThrottled:     "quoted-529",
	providertest.TraitQuota:         "composed/quoted-400-credit",
	providertest.TraitServerError:   "quoted-500",
}
