package openai

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/provider"
)

// Profile is how one server differs from the others, as data: an operator may
// take a row of Profiles and change single members of it in a configuration
// file. What servers answer needs no profile: the oddities of all are read from
// all. Strict schemas of arguments are never asked for, since each server allows
// another subset of JSON Schema there; loopd checks arguments itself.
type Profile struct {
	Name      string `yaml:"name"`
	BaseURL   string `yaml:"base_url"`   // up to what stands before /chat/completions; "" = must be configured
	NeedsKey  bool   `yaml:"needs_key"`  // the server refuses requests without a key
	KeyHeader string `yaml:"key_header"` // Authorization (as a bearer token), or a header that holds the bare key
	Query     string `yaml:"query"`      // added to the address, such as api-version=2024-10-21

	OutputLimit    string `yaml:"output_limit"`     // MaxTokens or MaxCompletionTokens
	StreamOptions  bool   `yaml:"stream_options"`   // the usage is asked for; false: it comes unasked, and asking is refused
	PromptCacheKey bool   `yaml:"prompt_cache_key"` // the run's cache key is sent as this member
	CacheKeyHeader string `yaml:"cache_key_header"` // the run's cache key is sent in this header; "" = in none
	Effort         string `yaml:"effort"`           // how reasoning effort is asked for: one of the Effort constants
	NoCalls        string `yaml:"no_calls"`         // how calls are forbidden: ByToolChoice or ByOmission

	Structured          string `yaml:"structured"`            // how an answer is held to a schema: one of the Structured constants
	StructuredWithTools bool   `yaml:"structured_with_tools"` // also in requests with tools; false: the server refuses it there, or the model calls none

	Replay        string `yaml:"replay"`          // the model's own reasoning in a history: one of the Replay constants
	CallIDs       string `yaml:"call_ids"`        // AnyID or NineAlphanumerics
	UserAfterTool bool   `yaml:"user_after_tool"` // a user message may follow tool results directly
	NullContent   bool   `yaml:"null_content"`    // the content of a message that only calls may be null; false: it is ""
	Images        string `yaml:"images"`          // one of the Media constants, without MediaDocumentURL
	Documents     string `yaml:"documents"`       // one of the Media constants; PDF only. Text documents go as text
}

// Names of the member that caps the output.
const (
	MaxTokens           = "max_tokens"            // understood by compatible servers
	MaxCompletionTokens = "max_completion_tokens" // demanded by OpenAI's reasoning models
)

// Ways to ask for reasoning effort, for Profile.Effort.
const (
	EffortOmitted  = "omitted"              // not at all
	EffortMember   = "reasoning_effort"     // "reasoning_effort": "high"
	EffortObject   = "reasoning"            // "reasoning": {"effort": "high"} or {"max_tokens": 2000}
	EffortThinking = "thinking"             // "thinking": {"type": "enabled"}, with reasoning_effort
	EffortTemplate = "chat_template_kwargs" // {"enable_thinking": true, "reasoning_effort": "high"} for the model's own template
)

// Ways to forbid calls while the history is full of them, for Profile.NoCalls.
const (
	ByToolChoice = "tool_choice" // "tool_choice": "none"; the tools stay, and with them the prompt cache
	ByOmission   = "omit_tools"  // no tools in the request, for servers that ignore or refuse tool_choice
)

// What becomes of reasoning that the server itself wrote, for Profile.Replay.
// Reasoning that another provider wrote is never sent.
const (
	ReplayKeep    = "keep"    // sent back as it came
	ReplayStrip   = "strip"   // the server refuses its members beside the content
	ReplayRequire = "require" // sent back, and an empty one where there is none: the server refuses calls without
)

// Rules for call ids, for Profile.CallIDs.
const (
	AnyID             = "any"
	NineAlphanumerics = "nine_alphanumerics" // exactly nine of a-z, A-Z and 0-9
)

// What a server takes of images and documents.
const (
	MediaNone        = "none"
	MediaData        = "data"         // data: addresses only
	MediaURL         = "url"          // data: and https: addresses
	MediaDocumentURL = "document_url" // both, in Mistral's part of that name
)

// profiles are the servers of which recordings or documentation exist. A row
// says where its facts come from; "recorded" means testdata.
var profiles = [...]Profile{
	{ // developers.openai.com/api/reference: chat; guides/file-inputs: PDF as data only; recorded.
		// guides/structured-outputs: json_schema, with tools too.
		// Its newest reasoning models take tools here only with effort "none"; the Responses API takes both.
		Name: "openai", BaseURL: "https://api.openai.com/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxCompletionTokens, StreamOptions: true, PromptCacheKey: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredSchema, StructuredWithTools: true, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaData,
	},
	{ // learn.microsoft.com/azure/foundry/openai/api-version-lifecycle: https://RESOURCE.openai.azure.com/openai/v1 needs
		// no api-version; the older .../openai/deployments/NAME does, in query. recorded.
		// foundry/openai/how-to/structured-outputs: as at OpenAI.
		Name: "azure", NeedsKey: true, KeyHeader: "api-key",
		OutputLimit: MaxCompletionTokens, StreamOptions: true, PromptCacheKey: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredSchema, StructuredWithTools: true, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaData,
	},
	{ // docs.aws.amazon.com/bedrock: inference-chat-completions (https://bedrock-runtime.REGION.amazonaws.com/openai/v1, or
		// https://bedrock-mantle.REGION.api.aws/v1), api-keys-use (bearer), model-parameters-openai (max_completion_tokens).
		// structured-output names Converse and InvokeModel only; bedrock-mantle answers 400 to a schema for Claude.
		Name: "bedrock", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxCompletionTokens, StreamOptions: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredNone, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaData, Documents: MediaNone,
	},
	{ // api-docs.deepseek.com/guides/thinking_mode: reasoning_content must come back with calls, also an empty one
		// (deepseek-ai/deepseek-harness discussion 1850); tool_choice is refused while thinking (mozilla-ai/any-llm 1384). recorded.
		// guides/json_mode: json_object only; of json_schema: "This response_format type is unavailable now" (pydantic-ai).
		Name: "deepseek", BaseURL: "https://api.deepseek.com/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortThinking, NoCalls: ByOmission,
		Structured: StructuredObject, Replay: ReplayRequire, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaNone, Documents: MediaNone,
	},
	{ // ai.google.dev/gemini-api/docs/openai: images as data; recorded: empty call ids, signatures that must come back.
		// Models before Gemini 3 refuse a schema beside tools (googleapis/js-genai 727).
		Name: "gemini", BaseURL: "https://generativelanguage.googleapis.com/v1beta/openai", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredSchema, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaData, Documents: MediaNone,
	},
	{ // console.groq.com/docs/api-reference; "property 'reasoning_content' is unsupported" in a history, and the same of
		// reasoning (janhq/jan 8136, karthink/gptel 774). recorded.
		// docs/structured-outputs: "Streaming and tool use are not currently supported with Structured Outputs".
		Name: "groq", BaseURL: "https://api.groq.com/openai/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxCompletionTokens, StreamOptions: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredNone, Replay: ReplayStrip, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaNone,
	},
	{ // github.com/ggml-org/llama.cpp tools/server README: the template's own switches; recorded with reasoning_content in
		// the history and content left out.
		// A schema becomes a grammar; "Cannot use custom grammar constraints with tools".
		Name: "llamacpp", BaseURL: "http://localhost:8080/v1", KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortTemplate, NoCalls: ByToolChoice,
		Structured: StructuredSchema, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaNone,
	},
	{ // docs.mistral.ai: reasoning_effort, prompt_cache_key, document_url. Refused: stream_options and max_completion_tokens
		// (422, openai/openai-agents-python 442, eca 231), other ids (code 3280, anomalyco/opencode 1680), user directly
		// after tool (code 3230, BerriAI/litellm 17761), members it does not know. recorded.
		// capabilities/structured_output: json_schema; nothing is said of tools beside it.
		Name: "mistral", BaseURL: "https://api.mistral.ai/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, PromptCacheKey: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredSchema, Replay: ReplayStrip, CallIDs: NineAlphanumerics, NullContent: false,
		Images: MediaURL, Documents: MediaDocumentURL,
	},
	{ // docs.ollama.com/api/openai-compatibility; tool_choice is ignored, also "none" (ollama/ollama 17921). recorded.
		// A schema is a grammar for all that is written, so no tool is called beside it (8095, 11037).
		Name: "ollama", BaseURL: "http://localhost:11434/v1", KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortMember, NoCalls: ByOmission,
		Structured: StructuredSchema, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaData, Documents: MediaNone,
	},
	{ // openrouter.ai/docs: reasoning-tokens (effort or max_tokens; reasoning_details come back unchanged), prompt-caching
		// (routing is sticky by itself), PDF as data or address. recorded.
		// structured-outputs: json_schema; whether tools may stand beside it is up to who serves the model.
		Name: "openrouter", BaseURL: "https://openrouter.ai/api/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortObject, NoCalls: ByToolChoice,
		Structured: StructuredSchema, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaURL,
	},
	{ // docs.vllm.ai/en/stable/features/reasoning_outputs: reasoning, once reasoning_content; enable_thinking in the template.
		// features/structured_outputs: as with ollama, no tool is called beside it (vllm-project/vllm 39929).
		Name: "vllm", BaseURL: "http://localhost:8000/v1", KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortTemplate, NoCalls: ByToolChoice,
		Structured: StructuredSchema, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaNone,
	},
	{ // docs.x.ai: prompt-caching/maximizing-cache-hits (header x-grok-conv-id); recorded: reasoning outside the completion.
		// structured-outputs: all models; with tools the Grok 4 family, which alone is marked in the price book.
		Name: "xai", BaseURL: "https://api.x.ai/v1", NeedsKey: true, KeyHeader: bearerHeader,
		OutputLimit: MaxCompletionTokens, StreamOptions: true, CacheKeyHeader: "X-Grok-Conv-Id", Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredSchema, StructuredWithTools: true, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaNone,
	},
	{ // Any other server: what most imitate. recorded of nine of them.
		Name: Compatible, KeyHeader: bearerHeader,
		OutputLimit: MaxTokens, StreamOptions: true, Effort: EffortMember, NoCalls: ByToolChoice,
		Structured: StructuredNone, Replay: ReplayKeep, CallIDs: AnyID, UserAfterTool: true, NullContent: true,
		Images: MediaURL, Documents: MediaData,
	},
}

// Compatible is the name of the profile for servers that have none of their own.
const Compatible = "compatible"

const bearerHeader = "Authorization"

// hosts say which profile an address has that nobody named one for. With a dot
// in front, they match all names below.
var hosts = [...]struct{ host, profile string }{
	{"api.openai.com", "openai"},
	{".openai.azure.com", "azure"},
	{".services.ai.azure.com", "azure"},
	{".cognitiveservices.azure.com", "azure"},
	{".amazonaws.com", "bedrock"},
	{".api.aws", "bedrock"},
	{"api.deepseek.com", "deepseek"},
	{"generativelanguage.googleapis.com", "gemini"},
	{"api.groq.com", "groq"},
	{"api.mistral.ai", "mistral"},
	{"localhost:11434", "ollama"},
	{"127.0.0.1:11434", "ollama"},
	{"ollama.com", "ollama"},
	{"openrouter.ai", "openrouter"},
	{"api.x.ai", "xai"},
}

// Profiles lists the known servers; the last one is for all others.
func Profiles() []Profile { return slices.Clone(profiles[:]) }

// ProfileNamed returns the profile of that name. The error lists those there are.
func ProfileNamed(name string) (Profile, error) {
	var names []string
	for _, p := range profiles {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("openai: profile %q is not known: write one of %s", name, strings.Join(names, ", "))
}

// profileAt returns the profile of the server at an address; "" is OpenAI's.
func profileAt(base string) Profile {
	name := Compatible
	if base == "" {
		name = "openai"
	}
	if u, err := url.Parse(base); err == nil {
		for _, h := range hosts {
			if u.Host == h.host || u.Hostname() == h.host || h.host[0] == '.' && strings.HasSuffix(u.Hostname(), h.host) {
				name = h.profile
			}
		}
	}
	i := slices.IndexFunc(profiles[:], func(p Profile) bool { return p.Name == name })
	return profiles[i]
}

// Validate reports a member with a value that has no meaning, and what may stand
// in its place.
func (p Profile) Validate() error {
	for _, m := range []struct {
		member, value string
		allowed       []string
	}{
		{"output_limit", p.OutputLimit, []string{MaxTokens, MaxCompletionTokens}},
		{"effort", p.Effort, []string{EffortOmitted, EffortMember, EffortObject, EffortThinking, EffortTemplate}},
		{"no_calls", p.NoCalls, []string{ByToolChoice, ByOmission}},
		{"structured", p.Structured, []string{StructuredSchema, StructuredObject, StructuredNone}},
		{"replay", p.Replay, []string{ReplayKeep, ReplayStrip, ReplayRequire}},
		{"call_ids", p.CallIDs, []string{AnyID, NineAlphanumerics}},
		{"images", p.Images, []string{MediaNone, MediaData, MediaURL}},
		{"documents", p.Documents, []string{MediaNone, MediaData, MediaURL, MediaDocumentURL}},
	} {
		if !slices.Contains(m.allowed, m.value) {
			return fmt.Errorf("openai: profile %q: %s %q: write %s", p.Name, m.member, m.value, strings.Join(m.allowed, " or "))
		}
	}
	if !isToken(p.KeyHeader) || p.CacheKeyHeader != "" && !isToken(p.CacheKeyHeader) {
		return fmt.Errorf("openai: profile %q: key_header %q or cache_key_header %q is no name of a header", p.Name, p.KeyHeader, p.CacheKeyHeader)
	}
	if _, err := url.ParseQuery(p.Query); err != nil || strings.HasPrefix(p.Query, "?") {
		return fmt.Errorf("openai: profile %q: query %q: write it as name=value, without a question mark", p.Name, p.Query)
	}
	if err := provider.CheckBaseURL(p.BaseURL); err != nil {
		return fmt.Errorf("openai: profile %q: %w", p.Name, err)
	}
	return nil
}

// isToken reports whether a header may have this name.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}
