package gemini_test

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// wants says what every recording in testdata means. It was written by a second
// reader of the recordings, which shares no code with the adapter.
var wants = map[string]providertest.Want{
	"cached": {Finish: loop.FinishDone, Text: "Paris.",
		Usage: loop.Usage{InputUncached: 8, CacheRead: 3512, Output: 2, Reasoning: 51}},
	"composed-list": {Finish: loop.FinishDone, Text: "\"Hi\" in Portuguese is **\"Oi\"**",
		Usage: loop.Usage{InputUncached: 11, Output: 39, Reasoning: 206}},
	"documented-malformed-call": {Class: loop.ErrorMidStream, Code: "MALFORMED_FUNCTION_CALL"},
	"documented-stream-error":   {Class: loop.ErrorMidStream, Code: "UNAVAILABLE"},
	"error-403-no-key":          {Class: loop.ErrorAuth, Code: "PERMISSION_DENIED"},
	"max-tokens-thinking": {Finish: loop.FinishTruncated, Text: "-",
		Usage: loop.Usage{InputUncached: 15, Reasoning: 2}},
	"max-tokens": {Finish: loop.FinishTruncated, Text: "The capital of France is",
		Usage: loop.Usage{InputUncached: 15, Output: 5}},
	"no-finish-reason": {Finish: loop.FinishUnknown, Text: "Hello there! How can I help yo",
		Usage: loop.Usage{InputUncached: 7, Output: 11}, UsageMissing: true},
	"parallel-tools-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 125, Output: 36, Reasoning: 342},
		Calls: []loop.ToolCall{
			{Name: "add", Args: `{"b":3,"a":2}`},
			{Name: "multiply", Args: `{"b":3,"a":2}`},
		}},
	"parallel-tools-2": {Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and t",
		Usage: loop.Usage{InputUncached: 185, Output: 19}},
	"parallel-tools-stream-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 157, Output: 32, Reasoning: 438},
		Calls: []loop.ToolCall{
			{ProviderID: "8hd01vsf", Name: "add", Args: `{"a": 2,"b": 3}`},
			{ProviderID: "k0srpqrc", Name: "multiply", Args: `{"b": 3,"a": 2}`},
		}},
	"parallel-tools-stream-2": {Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and t",
		Usage: loop.Usage{InputUncached: 646, Output: 19, Reasoning: 20}},
	"quoted-400-context": {Class: loop.ErrorContext, Code: "INVALID_ARGUMENT"},
	"quoted-400-field":   {Class: loop.ErrorRequest, Code: "INVALID_ARGUMENT"},
	"quoted-400-key":     {Class: loop.ErrorAuth, Code: "INVALID_ARGUMENT"},
	"quoted-404-model":   {Class: loop.ErrorRequest, Code: "NOT_FOUND"},
	"quoted-429-day":     {Class: loop.ErrorQuota, Code: "RESOURCE_EXHAUSTED"},
	"quoted-429-minute":  {Class: loop.ErrorThrottle, Code: "RESOURCE_EXHAUSTED", RetryAfter: 26 * time.Second},
	"quoted-429-vertex":  {Class: loop.ErrorThrottle, Code: "RESOURCE_EXHAUSTED"},
	"quoted-500":         {Class: loop.ErrorServer, Code: "INTERNAL"},
	"quoted-503":         {Class: loop.ErrorThrottle, Code: "UNAVAILABLE"},
	"quoted-blocked-prompt": {Finish: loop.FinishRefused, Text: "-",
		Usage: loop.Usage{InputUncached: 12559}},
	"safety": {Finish: loop.FinishRefused, Text: "-",
		Usage: loop.Usage{InputUncached: 14}},
	"text-stream": {Finish: loop.FinishDone, Text: "\"Hi\" in Portuguese is **\"Oi\"**",
		Usage: loop.Usage{InputUncached: 11, Output: 39, Reasoning: 206}},
	"text": {Finish: loop.FinishDone, Text: "Olá!",
		Usage: loop.Usage{InputUncached: 11, Output: 2, Reasoning: 24}},
	"thinking-tool-1": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 65, Output: 16, Reasoning: 138},
		Calls: []loop.ToolCall{
			{ProviderID: "v3yybtcf", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"thinking-tool-2": {Finish: loop.FinishDone, Text: "The current weather in Florenc", Reasoning: true,
		Usage: loop.Usage{InputUncached: 234, Output: 28, Reasoning: 56}},
	"thinking-tool-stream-1": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 54, Output: 14, Reasoning: 62},
		Calls: []loop.ToolCall{
			{Name: "weather", Args: `{"location": "Florence, Italy"}`},
		}},
	"thinking-tool-stream-2": {Finish: loop.FinishDone, Text: "The weather in Florence, Italy",
		Usage: loop.Usage{InputUncached: 146, Output: 12}},
	"tool-stream-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 54, Output: 15, Reasoning: 190},
		Calls: []loop.ToolCall{
			{Name: "weather", Args: `{"location": "Florence, Italy"}`},
		}},
	"tool-stream-2": {Finish: loop.FinishDone, Text: "The weather in Florence, Italy",
		Usage: loop.Usage{InputUncached: 274, Output: 12}},
	"vertex-blocked-answer": {Finish: loop.FinishRefused, Text: "-", Refusal: "The response violated Responsible AI Safety settings (Hate Speech, Harassment, Dangerous) filters.",
		Usage: loop.Usage{InputUncached: 19, Output: 6, Reasoning: 27}},
	"vertex-blocked-prompt": {Finish: loop.FinishRefused, Text: "-", Refusal: "The prompt violated Prompt Injection and Jailbreak filters.", UsageMissing: true},
	"vertex-tool-stream-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 28, Output: 5, Reasoning: 51},
		Calls: []loop.ToolCall{
			{Name: "weather", Args: `{"location": "Florence,Italy"}`},
		}},
	"vertex-tool-stream-2": {Finish: loop.FinishDone, Text: "The weather in Florence, Italy",
		Usage: loop.Usage{InputUncached: 89, Output: 12}},
}

// traits names the recording that shows each thing the wire can do.
var traits = map[providertest.Trait]string{
	providertest.TraitText:          "text-stream",
	providertest.TraitOneCall:       "tool-stream-1",
	providertest.TraitParallelCalls: "parallel-tools-stream-1",
	providertest.TraitStreamedCall:  "parallel-tools-stream-1",
	providertest.TraitReasoning:     "thinking-tool-1",
	providertest.TraitCache:         "cached",
	providertest.TraitRefusal:       "safety",
	providertest.TraitMissingUsage:  "vertex-blocked-prompt",
	providertest.TraitStreamError:   "documented-stream-error",
	providertest.TraitContext:       "quoted-400-context",
	providertest.TraitBadRequest:    "quoted-400-field",
	providertest.TraitNoModel:       "quoted-404-model",
	providertest.TraitWrongKey:      "quoted-400-key",
	providertest.TraitThrottled:     "quoted-429-minute",
	providertest.TraitQuota:         "quoted-429-day",
	providertest.TraitServerError:   "quoted-500",
}

// absent says why the wire cannot do the rest.
var absent = map[providertest.Trait]string{
	providertest.TraitTruncatedCall: "a call comes in one part with its arguments as an object, so it is whole or not there",
	providertest.TraitPaused:        "no finish reason asks for the answer to be sent back unchanged",
}
