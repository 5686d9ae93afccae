package anthropic

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// Messages are put together from these, so that stored bytes are never parsed
// and written again.
const (
	userOpen      = `{"role":"user","content":`
	assistantOpen = `{"role":"assistant","content":`
	itemClose     = `]}`
)

type textBlock struct {
	Type         string        `json:"type"`
	Text         string        `json:"text"`
	CacheControl *cacheControl `json:"cache_control,omitempty"`
}

type resultBlock struct {
	Type      string `json:"type"`
	ToolUseID string `json:"tool_use_id"`
	Content   string `json:"content,omitempty"`
	IsError   bool   `json:"is_error,omitempty"`
}

type callBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

type mediaBlock struct {
	Type   string      `json:"type"` // image or document
	Source mediaSource `json:"source"`
	Title  string      `json:"title,omitempty"`
}

type mediaSource struct {
	Type      string `json:"type"` // base64, url or text
	MediaType string `json:"media_type,omitempty"`
	Data      any    `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
}

// encodeStretch writes messages for a model. It returns none for a stretch with
// nothing in it: the API refuses empty messages.
func encodeStretch(model string) provider.EncodeStretch {
	return func(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
		var content json.RawMessage
		var err error
		open := assistantOpen
		if s.Role == loop.RoleUser {
			open = userOpen
			content, err = encodeUser(s, ids)
		} else {
			content, err = encodeAssistant(s.Message, model, ids)
		}
		if err != nil || content == nil {
			return nil, err
		}
		item := make([]byte, 0, len(open)+len(content)+1)
		return []json.RawMessage{append(append(append(item, open...), content...), '}')}, nil
	}
}

// encodeUser puts results before everything else, as the API demands, and text
// behind what it is about.
func encodeUser(s provider.Stretch, ids *provider.CallIDs) (json.RawMessage, error) {
	var blocks []any
	for _, r := range s.Results {
		blocks = append(blocks, resultBlock{Type: "tool_result", ToolUseID: ids.Of(r), Content: r.Content, IsError: r.IsError()})
	}
	for _, p := range s.Media {
		b, err := encodeMedia(p)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, b)
	}
	for _, t := range s.Texts {
		blocks = append(blocks, textBlock{Type: "text", Text: t})
	}
	return list(blocks)
}

// list writes content blocks, or nothing if there are none.
func list(blocks []any) (json.RawMessage, error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	content, err := json.Marshal(blocks)
	if err != nil {
		return nil, fmt.Errorf("content blocks: %w", err)
	}
	return content, nil
}

// encodeMedia writes an image or a document. What is text anyway goes as text:
// the API reads only PDF in base64.
func encodeMedia(p loop.Part) (mediaBlock, error) {
	m := p.Media
	b := mediaBlock{Type: string(p.Kind)}
	if p.Kind == loop.PartDocument {
		b.Title = m.Name
	}
	switch {
	case m.URL != "":
		b.Source = mediaSource{Type: "url", URL: m.URL}
	case len(m.Data) == 0:
		return mediaBlock{}, fmt.Errorf("%s %q has neither data nor a URL; set one", p.Kind, m.Name)
	case p.Kind == loop.PartDocument && isText(m):
		b.Source = mediaSource{Type: "text", MediaType: "text/plain", Data: string(m.Data)}
	default:
		b.Source = mediaSource{Type: "base64", MediaType: m.Type, Data: m.Data}
	}
	return b, nil
}

func isText(m *loop.Media) bool {
	kind, _, _ := strings.Cut(strings.ToLower(m.Type), ";")
	known := strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/xml"
	return known && utf8.Valid(m.Data)
}

// encodeAssistant replays the message as the API wrote it. Only call ids that the
// API would refuse are exchanged.
func encodeAssistant(m loop.Message, model string, ids *provider.CallIDs) (json.RawMessage, error) {
	wireIDs, own := ids.Assign(acceptable(m.Calls()))
	if !replayable(m, model) {
		return rebuild(m, wireIDs)
	}
	var content []json.RawMessage
	if err := json.Unmarshal(m.Native.JSON, &content); err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	switch {
	case len(content) == 0:
		return nil, nil
	case own:
		return m.Native.JSON, nil
	}
	return exchangeIDs(content, wireIDs)
}

// replayable reports whether the message can go back as it was stored. Reasoning
// that another vendor's model signed through this API is refused by Claude, and
// the other way round; Claudes read each other's.
func replayable(m loop.Message, model string) bool {
	if m.Native == nil || m.Native.Wire != wire {
		return false
	}
	return m.Model == "" || isClaude(m.Model) == isClaude(model)
}

func isClaude(model string) bool { return strings.Contains(strings.ToLower(model), "claude") }

// callID is what the API accepts as the id of a call.
var callID = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// acceptable drops ids that the API refuses, such as "functions.look:0", so that
// loopd's take their place.
func acceptable(calls []loop.ToolCall) []loop.ToolCall {
	for i, c := range calls {
		if !callID.MatchString(c.ProviderID) {
			calls[i].ProviderID = ""
		}
	}
	return calls
}

// exchangeIDs gives the calls of a stored message other ids.
func exchangeIDs(content []json.RawMessage, ids []string) (json.RawMessage, error) {
	for i, raw := range content {
		o, err := provider.ParseObject(raw)
		if err != nil {
			return nil, fmt.Errorf("stored assistant message: %w", err)
		}
		if o.Text("type") != typeToolUse || len(ids) == 0 {
			continue
		}
		id, err := json.Marshal(ids[0])
		if err != nil {
			return nil, fmt.Errorf("call id: %w", err)
		}
		o.Set("id", id)
		if content[i], err = o.MarshalJSON(); err != nil {
			return nil, fmt.Errorf("stored assistant message: %w", err)
		}
		ids = ids[1:]
	}
	changed, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	return changed, nil
}

// rebuild writes a message that another wire format or vendor recorded. Its
// reasoning is left out: without this API's signature it would be refused.
func rebuild(m loop.Message, ids []string) (json.RawMessage, error) {
	var blocks []any
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			if strings.TrimSpace(p.Text) != "" {
				blocks = append(blocks, textBlock{Type: "text", Text: p.Text})
			}
		case loop.PartToolCall:
			blocks = append(blocks, callBlock{Type: typeToolUse, ID: ids[0], Name: toolName(p.Call.Name), Input: provider.ObjectOr(p.Call.Args)})
			ids = ids[1:]
		}
	}
	return list(blocks)
}

// notInName is what the API refuses in the name of a tool.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// toolName makes what another model called acceptable: it may be a name that it
// made up. The API takes 128 characters.
func toolName(name string) string {
	name = notInName.ReplaceAllString(name, "_")
	if name == "" {
		return "_"
	}
	return name[:min(len(name), 128)]
}
