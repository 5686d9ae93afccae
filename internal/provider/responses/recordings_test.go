package responses_test

import (
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// wants says what every recording in testdata means.
var wants = map[string]providertest.Want{
	"compatible/xai-400-key": {Class: loop.ErrorAuth, Code: "invalid-argument"},
	"composed/responses-cached-tokens": {
		Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5",
		Usage: loop.Usage{InputUncached: 8, CacheRead: 4012, Output: 4},
	},
	"composed/responses-cut-call-stream": {
		Finish: loop.FinishTruncated, Text: "-",
		Usage: loop.Usage{InputUncached: 58, Output: 12},
		Calls: []loop.ToolCall{{ProviderID: "call_PRiJm2RVAvt7IoRvjxIXxFVF", Name: "weather", Args: `{"location":"Florence`}},
	},
	"composed/responses-reasoning-stream": {
		Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 47, Output: 43},
		Calls: []loop.ToolCall{{ProviderID: "call_4iw4Fy8zrd6UMnyPXTaY3WaL", Name: "get_file", Args: "{}"}},
	},
	"composed/responses-server-error-inside-stream": {Class: loop.ErrorMidStream, Code: "server_error"},
	"composed/responses-server-error-stream":        {Class: loop.ErrorServer, Code: "server_error"},
	"composed/responses-summary-stream": {
		Finish: loop.FinishDone, Text: "The meaning of life is 42", Reasoning: true,
		Usage: loop.Usage{InputUncached: 47, Output: 43},
	},
	"composed/responses-text-stream": {
		Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and their product is 6.",
		Usage: loop.Usage{InputUncached: 154, Output: 21},
	},
	"openai/error-400-context":         {Class: loop.ErrorContext, Code: "context_length_exceeded"},
	"openai/error-400-model-responses": {Class: loop.ErrorRequest, Code: "model_not_found"},
	"openai/error-400-parameter":       {Class: loop.ErrorRequest, Code: "decimal_below_min_value"},
	"openai/error-400-reasoning-item":  {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"openai/error-401":                 {Class: loop.ErrorAuth, Code: "invalid_api_key"},
	"openai/quoted-429-tokens":         {Class: loop.ErrorThrottle, Code: "rate_limit_exceeded"},
	// It was asked for by a GET. A server that answers a POST so has not answered.
	"openai/responses-background-queued": {Finish: loop.FinishUnknown, Text: "-", UsageMissing: true},
	// The response had been created, but nothing was written: it cost nothing.
	"openai/responses-error-stream": {Class: loop.ErrorQuota, Code: "insufficient_quota"},
	"openai/responses-function-call-stream": {
		Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 58, Output: 17},
		Calls: []loop.ToolCall{{ProviderID: "call_PRiJm2RVAvt7IoRvjxIXxFVF", Name: "weather", Args: `{"location":"Florence, Italy"}`}},
	},
	"openai/responses-function-call": {
		Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 40, Output: 18},
		Calls: []loop.ToolCall{{ProviderID: "call_YfwRsW8sUxDKipwyhWTzOXCA", Name: "get_capital", Args: `{"country":"PotatoLand"}`}},
	},
	"openai/responses-incomplete": {
		Finish: loop.FinishTruncated, Text: "Sure! Here is a list of all 50 U.S. states:",
		Usage: loop.Usage{InputUncached: 14, Output: 50},
	},
	"openai/responses-mcp-approval": {
		Finish: loop.FinishUnknown, Text: "-",
		Usage: loop.Usage{InputUncached: 422, Output: 40, Reasoning: 64},
	},
	"openai/responses-parallel-1": {
		Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 108, Output: 51},
		Calls: []loop.ToolCall{
			{ProviderID: "call_IAQ7c0mnAiAE89MUQa42HQy4", Name: "add", Args: `{"a":2,"b":3}`},
			{ProviderID: "call_gXYDdXX5Ld6zWOSpIAh0QHPr", Name: "multiply", Args: `{"a":2,"b":3}`},
		},
	},
	"openai/responses-parallel-2": {
		Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and their product is 6.",
		Usage: loop.Usage{InputUncached: 154, Output: 21},
	},
	"openai/responses-reasoning-encrypted": {
		Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 47, Output: 43},
		Calls: []loop.ToolCall{{ProviderID: "call_4iw4Fy8zrd6UMnyPXTaY3WaL", Name: "get_file", Args: "{}"}},
	},
	"openai/responses-refusal-stream": {
		Finish: loop.FinishRefused, Text: "-", Refusal: "I'm sorry, I can't assist with that.",
		Usage: loop.Usage{InputUncached: 54, Output: 11},
	},
	"openai/responses-refusal": {
		Finish: loop.FinishRefused, Text: "-", Refusal: "I'm very sorry, but I can't assist with that.",
		Usage: loop.Usage{InputUncached: 54, Output: 13},
	},
	"openai/responses-text": {
		Finish: loop.FinishDone, Text: "The capital of France is Paris.",
		Usage: loop.Usage{InputUncached: 42, Output: 8},
	},
	"openai/responses-web-search": {
		Finish: loop.FinishDone, Text: "The tallest mountain in Alberta is **Mount Columbia**",
		Usage: loop.Usage{InputUncached: 8236, Output: 40, Reasoning: 34},
	},
}

// traits names the recording that shows each thing the wire can do.
var traits = map[providertest.Trait]string{
	providertest.TraitText:          "openai/responses-text",
	providertest.TraitOneCall:       "openai/responses-function-call",
	providertest.TraitParallelCalls: "openai/responses-parallel-1",
	providertest.TraitStreamedCall:  "openai/responses-function-call-stream",
	providertest.TraitReasoning:     "composed/responses-summary-stream",
	providertest.TraitCache:         "composed/responses-cached-tokens",
	providertest.TraitRefusal:       "openai/responses-refusal-stream",
	providertest.TraitTruncatedCall: "composed/responses-cut-call-stream",
	providertest.TraitMissingUsage:  "openai/responses-background-queued",
	providertest.TraitStreamError:   "composed/responses-server-error-inside-stream",
	providertest.TraitContext:       "openai/error-400-context",
	providertest.TraitBadRequest:    "openai/error-400-parameter",
	providertest.TraitNoModel:       "openai/error-400-model-responses",
	providertest.TraitWrongKey:      "openai/error-401",
	providertest.TraitThrottled:     "openai/quoted-429-tokens",
	providertest.TraitQuota:         "openai/responses-error-stream",
	providertest.TraitServerError:   "composed/responses-server-error-stream",
}

var absent = map[providertest.Trait]string{
	providertest.TraitPaused: "the API runs the server's own tools to their end inside one response",
}
