package responses

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// wire names this format in loop.Native.
const wire = "openai_responses"

// request is everything but the input, which is spliced in already encoded.
type request struct {
	Model           string      `json:"model"`
	Instructions    string      `json:"instructions,omitempty"`
	Tools           []tool      `json:"tools,omitempty"`
	ToolChoice      string      `json:"tool_choice,omitempty"`
	MaxOutputTokens int64       `json:"max_output_tokens,omitempty"`
	Temperature     *float64    `json:"temperature,omitempty"`
	Reasoning       *reasoning  `json:"reasoning,omitempty"`
	Text            *textFormat `json:"text,omitempty"`
	Include         []string    `json:"include,omitempty"`
	Store           bool        `json:"store"`
	Stream          bool        `json:"stream"`
	PromptCacheKey  string      `json:"prompt_cache_key,omitempty"`
}

type reasoning struct {
	Effort  string `json:"effort"`
	Summary string `json:"summary,omitempty"`
}

// tool is a function. The API's default for strict is true, under which it
// refuses most schemas that tools really have.
type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
}

type message struct {
	Role    loop.Role `json:"role"`
	Content any       `json:"content"` // text, or []content
}

type content struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
	Filename string `json:"filename,omitempty"`
	FileData string `json:"file_data,omitempty"`
	FileURL  string `json:"file_url,omitempty"`
}

type call struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type callOutput struct {
	Type   string `json:"type"`
	CallID string `json:"call_id"`
	Output string `json:"output"`
}

// dialect is what differs between configurations in a request.
type dialect struct {
	summary string
	plain   bool
}

// encode writes the wire request. The same transcript always gives the same
// bytes, with or without the memo of the request before, and a longer one the
// same prefix.
func (d dialect) encode(req loop.ModelRequest) ([]byte, error) {
	r := request{
		Model: req.Model, Tools: tools(req.Tools), MaxOutputTokens: req.MaxOutputTokens, Temperature: req.Temperature,
		Text: textOf(req.OutputSchema), Stream: true, PromptCacheKey: req.CacheKey,
	}
	if strings.TrimSpace(req.Instructions) != "" {
		r.Instructions = req.Instructions
	}
	if len(r.Tools) > 0 && !req.ToolsAllowed {
		r.ToolChoice = "none" // the tools stay: taking them away loses the prompt cache
	}
	if effort := req.Reasoning.Effort; effort != "" {
		r.Reasoning = &reasoning{Effort: effort}
		if effort != "none" {
			r.Reasoning.Summary = d.summary
		}
	}
	if d.reasons(req) {
		r.Include = []string{"reasoning.encrypted_content"}
	}
	head, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	e := encoder{model: req.Provider + "/" + req.Model}
	// The input is one flat list, so an id may be used only once in all of it.
	input, err := provider.EncodeTranscript(req.Memo, req.Messages, true, e.stretch)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return provider.Splice(head, "input", input), nil
}

// reasons reports whether the model may be asked for its encrypted reasoning.
// Models that do not reason answer 400, "Encrypted content is not supported with
// this model"; of OpenAI's, those are the ones with these names.
func (d dialect) reasons(req loop.ModelRequest) bool {
	if req.Reasoning.Effort != "" {
		return true
	}
	for _, name := range []string{"gpt-3.5", "gpt-4", "chatgpt-", "gpt-5-chat"} {
		if strings.HasPrefix(req.Model, name) {
			return false
		}
	}
	return !d.plain
}

// tools keeps the given order.
func tools(specs []loop.ToolSpec) []tool {
	var all []tool
	for _, s := range specs {
		schema := s.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		all = append(all, tool{Type: "function", Name: s.Name, Description: s.Description, Parameters: schema})
	}
	return all
}

// encoder writes the stretches of one transcript for one model.
type encoder struct {
	model string // reference of the model that is asked
}

// stretch puts one output per result before a message with everything else that
// the user says.
func (e encoder) stretch(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
	if s.Role == loop.RoleAssistant {
		return e.assistant(s.Message, ids)
	}
	var items []any
	for _, r := range s.Results {
		items = append(items, callOutput{Type: "function_call_output", CallID: ids.Of(r), Output: r.Content})
	}
	var said []content
	for _, p := range s.Media {
		said = append(said, media(p))
	}
	for _, t := range s.Texts {
		said = append(said, content{Type: "input_text", Text: t})
	}
	if len(said) > 0 {
		items = append(items, message{Role: loop.RoleUser, Content: said})
	}
	return marshal(items)
}

// media writes an image or a document. Text goes in as text: the API takes files
// of that kind with some models only.
func media(p loop.Part) content {
	m := p.Media
	switch {
	case p.Kind == loop.PartImage && m.URL != "":
		return content{Type: "input_image", ImageURL: m.URL}
	case p.Kind == loop.PartImage:
		return content{Type: "input_image", ImageURL: dataURL(m)}
	case m.URL != "":
		return content{Type: "input_file", FileURL: m.URL}
	case strings.HasPrefix(m.Type, "text/"):
		return content{Type: "input_text", Text: strings.TrimLeft(m.Name+"\n"+string(m.Data), "\n")}
	}
	name := m.Name
	if name == "" { // the API demands one
		name = "document." + path.Base(m.Type)
	}
	return content{Type: "input_file", Filename: name, FileData: dataURL(m)}
}

func dataURL(m *loop.Media) string {
	return "data:" + m.Type + ";base64," + base64.StdEncoding.EncodeToString(m.Data)
}

func marshal(items []any) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for _, it := range items {
		raw, err := json.Marshal(it)
		if err != nil {
			return nil, fmt.Errorf("encode item: %w", err)
		}
		all = append(all, raw)
	}
	return all, nil
}
