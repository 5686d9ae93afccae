package openai_test

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// wants says what every recording in testdata means. It was checked against the
// recordings by a second reader, which shares no code with the adapter.
var wants = map[string]providertest.Want{
	"compatible/alibaba-tool-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 295, Output: 22},
		Calls: []loop.ToolCall{
			{ProviderID: "call_eee11723464a4b9eb8cee71d", Name: "weather", Args: `{"location": "San Francisco"}`},
		}},
	"compatible/arguments-null-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 57, Output: 17},
		Calls: []loop.ToolCall{
			{ProviderID: "0", Name: "llm_version", Args: "{}"},
		}},
	"compatible/azure-429": {Class: loop.ErrorThrottle, Code: "RateLimitReached", RetryAfter: 1 * time.Second},
	"compatible/azure-tool-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 64, Output: 23, Reasoning: 128},
		Calls: []loop.ToolCall{
			{ProviderID: "call_GkznHW5HPVnubv5R7iyby8af", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"compatible/cerebras-text": {Finish: loop.FinishDone, Text: "2 + 2 = 4.",
		Usage: loop.Usage{InputUncached: 43, Output: 9}},
	"compatible/deepseek-400-missing-output": {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"compatible/deepseek-401":                {Class: loop.ErrorAuth, Code: "invalid_request_error"},
	"compatible/deepseek-tool-call-1": {Finish: loop.FinishToolCalls, Text: "Let me load the dice rolling c", Reasoning: true,
		Usage: loop.Usage{InputUncached: 51, CacheRead: 512, Output: 56, Reasoning: 60},
		Calls: []loop.ToolCall{
			{ProviderID: "call_00_sXqYgMESDht75NCLLZtt9804", Name: "load_capability", Args: `{"id": "DICE_ROLL"}`},
		}},
	"compatible/deepseek-tool-call-2": {Finish: loop.FinishToolCalls, Text: "Let me get your name and roll ", Reasoning: true,
		Usage: loop.Usage{InputUncached: 875, Output: 53, Reasoning: 26},
		Calls: []loop.ToolCall{
			{ProviderID: "call_00_6edlnw3Z1MgeMfey687g8451", Name: "get_player_name", Args: "{}"},
			{ProviderID: "call_01_km02sac7sHxNDPATKLZy7705", Name: "roll_dice", Args: "{}"},
		}},
	"compatible/deepseek-tool-stream": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 19, CacheRead: 320, Output: 44, Reasoning: 39},
		Calls: []loop.ToolCall{
			{ProviderID: "call_00_ioIn7yN9p1ZOMNpDLwd4MgAF", Name: "weather", Args: `{"location": "San Francisco"}`},
		}},
	"compatible/gemini-empty-tool-id-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 35, Output: 12, Reasoning: 62},
		Calls: []loop.ToolCall{
			{ProviderID: "", Name: "get_current_time", Args: "{}"},
		}},
	"compatible/gemini-empty-tool-id-2": {Finish: loop.FinishDone, Text: "The current time is Noon.",
		Usage: loop.Usage{InputUncached: 66, Output: 6, Reasoning: 28}},
	"compatible/groq-404-model": {Class: loop.ErrorRequest, Code: "model_not_found"},
	"compatible/groq-tool-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 708, Output: 54},
		Calls: []loop.ToolCall{
			{ProviderID: "nxs2za2vr", Name: "get_mixed_content", Args: "{}"},
		}},
	"compatible/groq-tool-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 210, Output: 15},
		Calls: []loop.ToolCall{
			{ProviderID: "tk85n1k4m", Name: "weather", Args: "{}"},
		}},
	"compatible/groq-tool-use-failed-400":    {Class: loop.ErrorServer, Code: "tool_use_failed"},
	"compatible/groq-tool-use-failed-stream": {Class: loop.ErrorMidStream, Code: "tool_use_failed"},
	"compatible/hf-router-parallel": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 720, Output: 65},
		Calls: []loop.ToolCall{
			{ProviderID: "call_c67bb6b901354ca19bd1b70d", Name: "get_weather", Args: `{"city": "Paris"}`},
			{ProviderID: "call_1113747bb7de47ce8bffe3e9", Name: "final_result", Args: `{"city": "Paris", "summary": "Weather in Paris"}`},
		}},
	"compatible/kimi-novita-tool-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 56, Output: 12},
		Calls: []loop.ToolCall{
			{ProviderID: "llm_version:0", Name: "llm_version", Args: "{}"},
		}},
	"compatible/length-no-details": {Finish: loop.FinishTruncated, Text: "<think>Okay, the user is askin",
		Usage: loop.Usage{InputUncached: 13, Output: 50}},
	"compatible/llama-cpp-tool-1": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 139, Output: 58},
		Calls: []loop.ToolCall{
			{ProviderID: "mvVq65j66dyGRizURhbdNCEnSO56GhXx", Name: "weather", Args: `{"location":"Florence,Italy"}`},
		}},
	"compatible/llama-cpp-tool-2": {Finish: loop.FinishDone, Text: "The current weather in Florenc",
		Usage: loop.Usage{InputUncached: 213, Output: 18}},
	"compatible/llama-cpp-tool-stream": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 139, Output: 41},
		Calls: []loop.ToolCall{
			{ProviderID: "g2KOIWzn722hzEaZQmNVP4roUPEiYafL", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"compatible/mistral-401": {Class: loop.ErrorAuth},
	"compatible/mistral-tool-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 65, Output: 16},
		Calls: []loop.ToolCall{
			{ProviderID: "FI5qQGzDE", Name: "get_image", Args: "{}"},
		}},
	"compatible/moonshot-tool-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 30, Output: 12},
		Calls: []loop.ToolCall{
			{ProviderID: "call_abc123", Name: "get_weather", Args: `{"city":"Paris"}`},
		}},
	"compatible/ollama-400-context": {Class: loop.ErrorContext, Code: "invalid_request_error"},
	"compatible/ollama-json-schema": {Finish: loop.FinishDone, Text: `{ "city": "Paris", "country": `, Reasoning: true,
		Usage: loop.Usage{InputUncached: 136, Output: 15}},
	"compatible/ollama-tool-call": {Finish: loop.FinishToolCalls, Text: "-", Reasoning: true,
		Usage: loop.Usage{InputUncached: 206, Output: 194},
		Calls: []loop.ToolCall{
			{ProviderID: "call_o2vnpxrw", Name: "final_result", Args: `{"city":"Paris","country":"France"}`},
		}},
	"compatible/openrouter-429":         {Class: loop.ErrorThrottle, Code: "429"},
	"compatible/openrouter-context-400": {Class: loop.ErrorContext, Code: "400"},
	"compatible/openrouter-missing-arguments": {Finish: loop.FinishToolCalls, Text: "I'll search for education cont",
		Usage: loop.Usage{InputUncached: 568, Output: 48},
		Calls: []loop.ToolCall{
			{ProviderID: "toolu_vrtx_015QAXScZzRDPttiPoc34AdD", Name: "find_education_content", Args: "{}"},
		}},
	"compatible/openrouter-stream-error": {Class: loop.ErrorMidStream, Code: "400"},
	"compatible/perplexity-400-length":   {Class: loop.ErrorContext, Code: "too_many_prompt_tokens"},
	"compatible/snowflake-text": {Finish: loop.FinishUnknown, Text: "4",
		Usage: loop.Usage{InputUncached: 22, Output: 5}},
	"compatible/xai-400-key": {Class: loop.ErrorAuth, Code: "invalid-argument"},
	"compatible/xai-tool-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 208, CacheRead: 153, Output: 26, Reasoning: 93},
		Calls: []loop.ToolCall{
			{ProviderID: "call_98286056", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"composed/missing-usage-stream": {Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and t", UsageMissing: true},
	"composed/quoted-429-quota":     {Class: loop.ErrorQuota, Code: "insufficient_quota"},
	"composed/truncated-call-stream": {Finish: loop.FinishTruncated, Text: "-",
		Usage: loop.Usage{InputUncached: 145, Output: 25, Reasoning: 64},
		Calls: []loop.ToolCall{
			{ProviderID: "call_eKRQDHJdZUhEXo1K1cobzFrl", Name: "weather", Args: `{"location":"Florence, Italy`},
		}},
	"openai/chat-cached-tokens": {Finish: loop.FinishDone, Text: "OK",
		Usage: loop.Usage{InputUncached: 8, CacheRead: 4012, Output: 4}},
	"openai/chat-legacy-function-call": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 62, Output: 14},
		Calls: []loop.ToolCall{
			{ProviderID: "", Name: "get_weather", Args: `{"location":"Boston"}`},
		}},
	"openai/chat-length-empty": {Finish: loop.FinishTruncated, Text: "-",
		Usage: loop.Usage{InputUncached: 13, Reasoning: 50}},
	"openai/chat-length": {Finish: loop.FinishTruncated, Text: "Certainly! Here is a list of a",
		Usage: loop.Usage{InputUncached: 14, Output: 50}},
	"openai/chat-parallel-tools-stream-1": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 106, Output: 50},
		Calls: []loop.ToolCall{
			{ProviderID: "call_ehIWdjL1abZk1h8FWGLQ0Hie", Name: "add", Args: `{"a": 2, "b": 3}`},
			{ProviderID: "call_fBSgA47J5VeONggizTIvl7AH", Name: "multiply", Args: `{"a": 2, "b": 3}`},
		}},
	"openai/chat-parallel-tools-stream-2": {Finish: loop.FinishDone, Text: "The sum of 2 and 3 is 5, and t",
		Usage: loop.Usage{InputUncached: 172, Output: 20}},
	"openai/chat-parallel-tools": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 71, Output: 46},
		Calls: []loop.ToolCall{
			{ProviderID: "call_HMKxpFuWMpNPfuK5352En5En", Name: "delete_file", Args: `{"path": ".env"}`},
			{ProviderID: "call_CAES42XVgl0EvrUmnIoHkMSS", Name: "create_file", Args: `{"path": "test.txt"}`},
		}},
	"openai/chat-reasoning-usage": {Finish: loop.FinishDone, Text: "Hello there! How can I help yo",
		Usage: loop.Usage{InputUncached: 7, Output: 23, Reasoning: 64}},
	"openai/chat-refusal-stream": {Finish: loop.FinishRefused, Text: "-", Refusal: "I'm very sorry, but I can't assist with that request.",
		Usage: loop.Usage{InputUncached: 64, Output: 13}},
	"openai/chat-refusal": {Finish: loop.FinishRefused, Text: "-", Refusal: "I'm very sorry, but I can't assist with that request.",
		Usage: loop.Usage{InputUncached: 64, Output: 13}},
	"openai/chat-text": {Finish: loop.FinishDone, Text: "The document lists the graphic",
		Usage: loop.Usage{InputUncached: 1679, Output: 25}},
	"openai/chat-tool-call-stream-reasoning": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 64, Output: 25, Reasoning: 64},
		Calls: []loop.ToolCall{
			{ProviderID: "call_SyhYkKgZpS1zkLbedByQ2MLh", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"openai/chat-tool-call-stream": {Finish: loop.FinishToolCalls, Text: "-",
		Usage: loop.Usage{InputUncached: 145, Output: 25, Reasoning: 64},
		Calls: []loop.ToolCall{
			{ProviderID: "call_eKRQDHJdZUhEXo1K1cobzFrl", Name: "weather", Args: `{"location":"Florence, Italy"}`},
		}},
	"openai/error-400-context":             {Class: loop.ErrorContext, Code: "context_length_exceeded"},
	"openai/error-400-model-responses":     {Class: loop.ErrorRequest, Code: "model_not_found"},
	"openai/error-400-parameter":           {Class: loop.ErrorRequest, Code: "decimal_below_min_value"},
	"openai/error-400-reasoning-item":      {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"openai/error-401":                     {Class: loop.ErrorAuth, Code: "invalid_api_key"},
	"openai/error-404-model":               {Class: loop.ErrorRequest, Code: "model_not_found"},
	"openai/quoted-400-unpaired-tool-call": {Class: loop.ErrorRequest, Code: "invalid_request_error"},
	"openai/quoted-429-tokens":             {Class: loop.ErrorThrottle, Code: "rate_limit_exceeded"},
}

// traits says which recording shows what the wire can do.
var traits = map[providertest.Trait]string{
	providertest.TraitText:          "openai/chat-text",
	providertest.TraitOneCall:       "openai/chat-tool-call-stream",
	providertest.TraitParallelCalls: "openai/chat-parallel-tools-stream-1",
	providertest.TraitStreamedCall:  "openai/chat-tool-call-stream",
	providertest.TraitReasoning:     "compatible/deepseek-tool-stream",
	providertest.TraitCache:         "openai/chat-cached-tokens",
	providertest.TraitRefusal:       "openai/chat-refusal-stream",
	providertest.TraitTruncatedCall: "composed/truncated-call-stream",
	providertest.TraitMissingUsage:  "composed/missing-usage-stream",
	providertest.TraitStreamError:   "compatible/groq-tool-use-failed-stream",
	providertest.TraitContext:       "openai/error-400-context",
	providertest.TraitBadRequest:    "openai/error-400-parameter",
	providertest.TraitNoModel:       "openai/error-404-model",
	providertest.TraitWrongKey:      "openai/error-401",
	providertest.TraitThrottled:     "openai/quoted-429-tokens",
	providertest.TraitQuota:         "composed/quoted-429-quota",
	providertest.TraitServerError:   "compatible/groq-tool-use-failed-400",
}

var absent = map[providertest.Trait]string{
	providertest.TraitPaused: "Chat Completions has no answer that is to be continued",
}
