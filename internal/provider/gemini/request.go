package gemini

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// wire names this format in loop.Native. The native form of an assistant message
// is the list of its parts.
const wire = "gemini"

// head is a request without its contents, which go last, so that the bytes of a
// longer transcript begin with those of a shorter one.
type head struct {
	Model             string            `json:"model,omitempty"` // inside countTokens only
	SystemInstruction *content          `json:"systemInstruction,omitempty"`
	Tools             []toolSet         `json:"tools,omitempty"`
	ToolConfig        *toolConfig       `json:"toolConfig,omitempty"`
	GenerationConfig  *generationConfig `json:"generationConfig,omitempty"`
}

type content struct {
	Role  string `json:"role,omitempty"`
	Parts any    `json:"parts"`
}

type toolSet struct {
	FunctionDeclarations []declaration `json:"functionDeclarations"`
}

// declaration carries the schema as it is. The older member, parameters, takes a
// dialect of OpenAPI and refuses much of JSON Schema.
type declaration struct {
	Name                 string          `json:"name"`
	Description          string          `json:"description,omitempty"`
	ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema,omitempty"`
}

type toolConfig struct {
	FunctionCallingConfig functionCallingConfig `json:"functionCallingConfig"`
}

type functionCallingConfig struct {
	Mode string `json:"mode"`
}

type generationConfig struct {
	CandidateCount  int             `json:"candidateCount"`
	MaxOutputTokens int64           `json:"maxOutputTokens,omitempty"` // thoughts included
	Temperature     *float64        `json:"temperature,omitempty"`
	ThinkingConfig  *thinkingConfig `json:"thinkingConfig,omitempty"`

	ResponseMimeType   string          `json:"responseMimeType,omitempty"`
	ResponseJSONSchema json.RawMessage `json:"responseJsonSchema,omitempty"`
}

type thinkingConfig struct {
	ThinkingBudget  *int64 `json:"thinkingBudget,omitempty"`
	ThinkingLevel   string `json:"thinkingLevel,omitempty"`
	IncludeThoughts bool   `json:"includeThoughts,omitempty"`
}

// part is a part that loopd writes. Exactly one of the others stands beside
// thought and signature.
type part struct {
	Text             string            `json:"text,omitempty"`
	Thought          bool              `json:"thought,omitempty"`
	FunctionCall     *functionCall     `json:"functionCall,omitempty"`
	FunctionResponse *functionResponse `json:"functionResponse,omitempty"`
	InlineData       *inlineData       `json:"inlineData,omitempty"`
	FileData         *fileData         `json:"fileData,omitempty"`
	ThoughtSignature string            `json:"thoughtSignature,omitempty"`
}

type functionCall struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

type functionResponse struct {
	ID       string   `json:"id,omitempty"`
	Name     string   `json:"name"`
	Response response `json:"response"`
}

// response has one of the two members that the API gives a meaning. The content
// stays a string: as an object it would become a protobuf Struct, which knows no
// integers above 2^53.
type response struct {
	Output *string `json:"output,omitempty"`
	Error  *string `json:"error,omitempty"`
}

type inlineData struct {
	MimeType string `json:"mimeType"`
	Data     []byte `json:"data"`
}

type fileData struct {
	MimeType string `json:"mimeType,omitempty"`
	FileURI  string `json:"fileUri"`
}

// encode writes the wire request. The same transcript always gives the same
// bytes, and a longer one the same prefix.
func encode(req loop.ModelRequest) ([]byte, error) {
	h := head{
		SystemInstruction: instruction(req.Instructions),
		Tools:             tools(req.Tools),
		GenerationConfig: &generationConfig{
			CandidateCount: 1, MaxOutputTokens: req.MaxOutputTokens, Temperature: req.Temperature,
			ThinkingConfig: thinking(req.Reasoning, req.Model),
		},
	}
	h.GenerationConfig.hold(req)
	if len(h.Tools) > 0 && !req.ToolsAllowed {
		// The tools stay declared: taking them away loses the prompt cache, and
		// calls in the history would refer to nothing.
		h.ToolConfig = &toolConfig{FunctionCallingConfig: functionCallingConfig{Mode: "NONE"}}
	}
	return h.with(req)
}

// encodeCount writes a request to countTokens. Vertex AI takes the members of the
// request to be counted as its own.
func encodeCount(req loop.ModelRequest, vertex bool) ([]byte, error) {
	h := head{SystemInstruction: instruction(req.Instructions), Tools: tools(req.Tools)}
	if vertex {
		return h.with(req)
	}
	h.Model = "models/" + bare(req.Model)
	counted, err := h.with(req)
	if err != nil {
		return nil, err
	}
	return []byte(`{"generateContentRequest":` + string(counted) + `}`), nil
}

// with appends the transcript.
func (h head) with(req loop.ModelRequest) ([]byte, error) {
	object, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	d := dialect{signed: isThird(req.Model)}
	contents, err := provider.EncodeTranscript(req.Memo, req.Messages, false, d.encodeStretch)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return provider.Splice(object, "contents", contents), nil
}

func instruction(text string) *content {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return &content{Parts: []part{{Text: text}}}
}

// tools keeps the given order. All functions go into one tool, as the API wants it.
func tools(specs []loop.ToolSpec) []toolSet {
	if len(specs) == 0 {
		return nil
	}
	all := make([]declaration, 0, len(specs))
	for _, s := range specs {
		all = append(all, declaration{Name: s.Name, Description: s.Description, ParametersJSONSchema: s.Schema})
	}
	return []toolSet{{FunctionDeclarations: all}}
}

// thinking is nil for the model's own default. Models before Gemini 3 know a
// budget only; for them an effort is the number of tokens that Google's own
// OpenAI-compatible endpoint takes it for. Later ones cannot be kept from
// thinking, so "none" is their lowest level.
func thinking(r loop.Reasoning, model string) *thinkingConfig {
	switch {
	case r.Budget > 0:
		return &thinkingConfig{ThinkingBudget: &r.Budget, IncludeThoughts: true}
	case r.Effort == "":
		return nil
	case isThird(model):
		return &thinkingConfig{ThinkingLevel: level(r.Effort, model), IncludeThoughts: r.Effort != "none"}
	}
	budget := map[string]int64{"none": 0, "minimal": 1024, "low": 1024, "medium": 8192}
	tokens, known := budget[r.Effort]
	if !known { // "high" and above: the most that every such model takes
		tokens = 24_576
	}
	return &thinkingConfig{ThinkingBudget: &tokens, IncludeThoughts: tokens > 0}
}

// level is the wire's word for an effort. The pro models refuse MINIMAL.
func level(effort, model string) string {
	switch effort {
	case "none", "minimal":
		if strings.Contains(model, "pro") {
			return "LOW"
		}
		return "MINIMAL"
	case "low", "medium":
		return strings.ToUpper(effort)
	}
	return "HIGH"
}

// isThird reports whether a model is of the third generation or later. Those take
// thinking levels, and refuse a call in the history that bears no signature.
func isThird(model string) bool {
	name := bare(model)
	return !strings.HasPrefix(name, "gemini-1") && !strings.HasPrefix(name, "gemini-2")
}

// dialect is what differs between models in a transcript.
type dialect struct {
	signed bool // the first call of a message needs a signature
}

// skipValidator is what Google documents as the signature of a call that another
// model made: https://ai.google.dev/gemini-api/docs/thought-signatures
const skipValidator = "skip_thought_signature_validator"

// encodeStretch writes nothing for a stretch with nothing in it: the API refuses
// a content without parts.
func (d dialect) encodeStretch(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
	c := content{Role: "user", Parts: user(s, ids)}
	if s.Role == loop.RoleAssistant {
		c = content{Role: "model", Parts: d.assistant(s.Message, ids)}
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	if bytes.HasSuffix(raw, []byte(`"parts":[]}`)) || bytes.HasSuffix(raw, []byte(`"parts":null}`)) {
		return nil, nil
	}
	return []json.RawMessage{raw}, nil
}

// user puts results first, then media, then text.
func user(s provider.Stretch, ids *provider.CallIDs) []part {
	var parts []part
	for _, r := range s.Results {
		f := functionResponse{Name: r.Name, Response: response{Output: &r.Content}}
		if r.IsError() {
			f.Response = response{Error: &r.Content}
		}
		// Most models give their calls no id, and then it is name and order that
		// match. loopd's own id never stood in the call.
		if id := ids.Of(r); id != r.CallID {
			f.ID = id
		}
		parts = append(parts, part{FunctionResponse: &f})
	}
	for _, p := range s.Media {
		if p.Media.URL != "" {
			parts = append(parts, part{FileData: &fileData{MimeType: p.Media.Type, FileURI: p.Media.URL}})
			continue
		}
		parts = append(parts, part{InlineData: &inlineData{MimeType: p.Media.Type, Data: p.Media.Data}})
	}
	for _, t := range s.Texts {
		parts = append(parts, part{Text: t})
	}
	return parts
}

// assistant replays the parts as the API wrote them. What another wire format
// wrote, or a model that signs nothing for one that wants signatures, is rebuilt.
func (d dialect) assistant(m loop.Message, ids *provider.CallIDs) any {
	calls := m.Calls()
	if m.Native == nil || m.Native.Wire != wire || d.signed && len(calls) > 0 && !bytes.Contains(m.Native.JSON, []byte(`"thoughtSignature"`)) {
		for i := range calls {
			calls[i].ProviderID = "" // another format's: the rebuilt call has none
		}
		ids.Assign(calls)
		return d.rebuild(m)
	}
	return m.Native.JSON
}

// rebuild writes a message from its neutral parts. Reasoning is left out: nobody
// but the model that signed it can use it.
func (d dialect) rebuild(m loop.Message) []part {
	var parts []part
	signature := ""
	if d.signed {
		signature = skipValidator
	}
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			if strings.TrimSpace(p.Text) != "" {
				parts = append(parts, part{Text: p.Text})
			}
		case loop.PartToolCall:
			call := &functionCall{Name: p.Call.Name, Args: provider.ObjectOr(p.Call.Args)}
			parts = append(parts, part{FunctionCall: call, ThoughtSignature: signature})
			signature = "" // of parallel calls only the first bears one
		}
	}
	return parts
}
