package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// sent is a request as a run would send it. Readers of the wire formats refuse what a
// run cannot send; members that make no tokens are declared as any and left out.
type sent struct {
	model        string
	instructions string
	tools        []loop.ToolSpec
	messages     []loop.Message
	maxOutput    int64
}

// strict decodes JSON without white space between its members, as it was sent. A member
// that v has not is an error.
func strict(raw []byte, v any) error {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return err
	}
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// add appends a message; results and texts for the model that follow each other are one.
func (s *sent) add(role loop.Role, native *loop.Native, parts ...loop.Part) {
	if last := len(s.messages) - 1; last >= 0 && role == loop.RoleUser && s.messages[last].Role == role {
		s.messages[last].Parts = append(s.messages[last].Parts, parts...)
		return
	}
	s.messages = append(s.messages, loop.Message{Role: role, Parts: parts, Native: native})
}

func (s *sent) instruct(text string) {
	s.instructions = strings.TrimPrefix(s.instructions+"\n\n"+text, "\n\n")
}

func (s *sent) tool(name, description string, schema json.RawMessage) {
	s.tools = append(s.tools, loop.ToolSpec{Name: name, Description: description, Schema: schema, Effect: loop.ReadOnly})
}

func callPart(id, name, args string) loop.Part {
	return loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ProviderID: id, Name: name, Args: args}}
}

func resultPart(id, name, content string) loop.Part {
	return loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{ProviderID: id, Name: name, Content: content}}
}

// texts reads content that is a text or a list of blocks with texts.
func texts(raw json.RawMessage) (all []string, err error) {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return []string{text}, nil
	}
	var blocks []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Cache any    `json:"cache_control"`
		Mark  any    `json:"prompt_cache_breakpoint"`
	}
	if err := strict(raw, &blocks); err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if b.Type != "text" && b.Type != "input_text" && b.Type != "output_text" {
			return nil, fmt.Errorf("content of type %s", b.Type)
		}
		all = append(all, b.Text)
	}
	return all, nil
}

func joined(raw json.RawMessage) (string, error) {
	all, err := texts(raw)
	return strings.Join(all, ""), err
}

func textParts(raw json.RawMessage) (parts []loop.Part, err error) {
	all, err := texts(raw)
	for _, text := range all {
		if text != "" {
			parts = append(parts, loop.TextPart(text))
		}
	}
	return parts, err
}

func readAnthropic(body []byte) (sent, error) {
	var req struct {
		Model     string          `json:"model"`
		MaxTokens int64           `json:"max_tokens"`
		System    json.RawMessage `json:"system"`
		Messages  []struct {
			Role    loop.Role       `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"input_schema"`
			Strict      any             `json:"strict"`
			Defer       any             `json:"defer_loading"`
		} `json:"tools"`
		Output struct {
			Effort any `json:"effort"`
		} `json:"output_config"`
		Stream      any `json:"stream"`
		Temperature any `json:"temperature"`
		Choice      any `json:"tool_choice"`
		Thinking    any `json:"thinking"`
		Cache       any `json:"cache_control"`
		Stops       any `json:"stop_sequences"`
	}
	if err := strict(body, &req); err != nil {
		return sent{}, err
	}
	s := sent{model: req.Model, maxOutput: req.MaxTokens}
	system, err := joined(req.System)
	if err != nil {
		return s, err
	}
	s.instruct(system)
	for _, t := range req.Tools {
		if t.Type != "" {
			err = errors.Join(err, fmt.Errorf("the server's tool %s", t.Type))
			continue
		}
		s.tool(t.Name, t.Description, t.Schema)
	}
	for _, m := range req.Messages {
		parts, partsErr := anthropicParts(m.Content)
		err = errors.Join(err, partsErr)
		var native *loop.Native
		if m.Role == loop.RoleAssistant {
			native = &loop.Native{Wire: "anthropic", JSON: m.Content}
		}
		s.add(m.Role, native, parts...)
	}
	return s, err
}

func anthropicParts(content json.RawMessage) (parts []loop.Part, err error) {
	if parts, err = textParts(content); err == nil {
		return parts, nil
	}
	var blocks []struct {
		Type      string          `json:"type"`
		Text      string          `json:"text"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
		ResultOf  string          `json:"tool_use_id"`
		Content   json.RawMessage `json:"content"`
		Thinking  string          `json:"thinking"`
		Signature any             `json:"signature"`
		Data      any             `json:"data"`
		IsError   any             `json:"is_error"`
		Cache     any             `json:"cache_control"`
	}
	if err := strict(content, &blocks); err != nil {
		return nil, err
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			parts = append(parts, loop.TextPart(b.Text))
		case "thinking", "redacted_thinking":
			parts = append(parts, loop.Part{Kind: loop.PartReasoning, Text: b.Thinking})
		case "tool_use":
			parts = append(parts, callPart(b.ID, b.Name, string(b.Input)))
		case "tool_result":
			text, err := joined(b.Content)
			if err != nil {
				return nil, err
			}
			parts = append(parts, resultPart(b.ResultOf, "", text))
		default:
			return nil, fmt.Errorf("a block of type %s", b.Type)
		}
	}
	return parts, nil
}

// openAIFunction is a declared function in Chat Completions.
type openAIFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      any             `json:"strict"`
}

// openAIMessage is a message in Chat Completions.
type openAIMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Thought   string          `json:"reasoning_content"`
	Reasoning string          `json:"reasoning"`
	Calls     []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
	ResultOf string `json:"tool_call_id"`
}

func readOpenAI(body []byte) (sent, error) {
	var req struct {
		Model         string            `json:"model"`
		MaxTokens     int64             `json:"max_tokens"`
		MaxCompletion int64             `json:"max_completion_tokens"`
		Messages      []json.RawMessage `json:"messages"`
		Tools         []struct {
			Type     string         `json:"type"`
			Function openAIFunction `json:"function"`
		} `json:"tools"`
		Functions   []openAIFunction `json:"functions"`
		Stream      any              `json:"stream"`
		Options     any              `json:"stream_options"`
		Temperature any              `json:"temperature"`
		TopP        any              `json:"top_p"`
		N           any              `json:"n"`
		Choice      any              `json:"tool_choice"`
		CacheKey    any              `json:"prompt_cache_key"`
		Cache       any              `json:"prompt_cache_options"`
	}
	if err := strict(body, &req); err != nil {
		return sent{}, err
	}
	s := sent{model: req.Model, maxOutput: cmp.Or(req.MaxCompletion, req.MaxTokens)}
	for _, t := range req.Tools {
		req.Functions = append(req.Functions, t.Function)
	}
	for _, f := range req.Functions {
		s.tool(f.Name, f.Description, f.Parameters)
	}
	for _, raw := range req.Messages {
		var m openAIMessage
		if err := strict(raw, &m); err != nil {
			return s, err
		}
		if err := s.addOpenAI(m, raw); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *sent) addOpenAI(m openAIMessage, raw json.RawMessage) error {
	parts, err := textParts(m.Content)
	if err != nil {
		return err
	}
	switch m.Role {
	case "system", "developer":
		for _, p := range parts {
			s.instruct(p.Text)
		}
	case "user":
		s.add(loop.RoleUser, nil, parts...)
	case "tool":
		text, err := joined(m.Content)
		s.add(loop.RoleUser, nil, resultPart(m.ResultOf, "", text))
		return err
	case "assistant":
		if thought := m.Thought + m.Reasoning; thought != "" {
			parts = append([]loop.Part{{Kind: loop.PartReasoning, Text: thought}}, parts...)
		}
		for _, c := range m.Calls {
			parts = append(parts, callPart(c.ID, c.Function.Name, c.Function.Arguments))
		}
		s.add(loop.RoleAssistant, &loop.Native{Wire: "openai", JSON: raw}, parts...)
	default:
		return fmt.Errorf("a message of role %s", m.Role)
	}
	return nil
}

func readResponses(body []byte) (sent, error) {
	var req struct {
		Model        string            `json:"model"`
		Instructions string            `json:"instructions"`
		MaxOutput    int64             `json:"max_output_tokens"`
		Input        []json.RawMessage `json:"input"`
		Tools        []struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      any             `json:"strict"`
			Context     any             `json:"search_context_size"`
		} `json:"tools"`
		Text    json.RawMessage `json:"text"`
		Include any             `json:"include"`
		Store   any             `json:"store"`
		Stream  any             `json:"stream"`
		Choice  any             `json:"tool_choice"`
	}
	if err := strict(body, &req); err != nil {
		return sent{}, err
	}
	if req.Text != nil {
		return sent{}, fmt.Errorf("a form for the text: %s", req.Text)
	}
	s := sent{model: req.Model, maxOutput: req.MaxOutput}
	s.instruct(req.Instructions)
	for _, t := range req.Tools {
		if t.Type != "function" {
			return s, fmt.Errorf("the server's tool %s", t.Type)
		}
		s.tool(t.Name, t.Description, t.Parameters)
	}
	for _, raw := range req.Input {
		if err := s.addItem(raw); err != nil {
			return s, err
		}
	}
	return s, nil
}

// addItem adds an item of the Responses API. The calls of one answer are items of their
// own.
func (s *sent) addItem(raw json.RawMessage) error {
	var item struct {
		Type      string          `json:"type"`
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments string          `json:"arguments"`
		Output    string          `json:"output"`
	}
	if err := strict(raw, &item); err != nil {
		return err
	}
	parts, err := textParts(item.Content)
	switch {
	case err != nil:
		return err
	case item.Type == "function_call":
		s.addAnswer(raw, callPart(item.CallID, item.Name, item.Arguments))
	case item.Type == "function_call_output":
		s.add(loop.RoleUser, nil, resultPart(item.CallID, "", item.Output))
	case item.Type != "" && item.Type != "message":
		return fmt.Errorf("an item of type %s", item.Type)
	case item.Role == "system":
		for _, p := range parts {
			s.instruct(p.Text)
		}
	case item.Role == "user":
		s.add(loop.RoleUser, nil, parts...)
	default:
		return fmt.Errorf("an item of role %s", item.Role)
	}
	return nil
}

// addAnswer adds an item to the answer that it belongs to.
func (s *sent) addAnswer(raw json.RawMessage, part loop.Part) {
	last := len(s.messages) - 1
	if last < 0 || s.messages[last].Role != loop.RoleAssistant {
		s.add(loop.RoleAssistant, &loop.Native{Wire: "openai_responses", JSON: fmt.Appendf(nil, "[%s]", raw)}, part)
		return
	}
	m := &s.messages[last]
	m.Parts = append(m.Parts, part)
	m.Native.JSON = fmt.Appendf(bytes.TrimSuffix(m.Native.JSON, []byte("]")), ",%s]", raw)
}

// geminiPart is a part of Gemini's API.
type geminiPart struct {
	Text      string `json:"text"`
	Thought   bool   `json:"thought"`
	Signature any    `json:"thoughtSignature"`
	Call      *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	Response *struct {
		ID       string          `json:"id"`
		Name     string          `json:"name"`
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse"`
}

func (p geminiPart) part() loop.Part {
	switch {
	case p.Call != nil:
		return callPart(p.Call.ID, p.Call.Name, string(p.Call.Args))
	case p.Response != nil:
		return resultPart(p.Response.ID, p.Response.Name, string(p.Response.Response))
	case p.Thought:
		return loop.Part{Kind: loop.PartReasoning, Text: p.Text}
	}
	return loop.TextPart(p.Text)
}

func readGemini(body []byte) (sent, error) {
	type content struct {
		Role  string          `json:"role"`
		Parts json.RawMessage `json:"parts"`
	}
	var req struct {
		System   content   `json:"systemInstruction"`
		Contents []content `json:"contents"`
		Tools    []struct {
			Functions []openAIFunction `json:"functionDeclarations"`
		} `json:"tools"`
		Config struct {
			MaxOutput  int64 `json:"maxOutputTokens"`
			Modalities any   `json:"responseModalities"`
			Thinking   any   `json:"thinkingConfig"`
		} `json:"generationConfig"`
		Choice any `json:"toolConfig"`
		Safety any `json:"safetySettings"`
		Armor  any `json:"modelArmorConfig"`
	}
	if err := strict(body, &req); err != nil {
		return sent{}, err
	}
	s := sent{maxOutput: req.Config.MaxOutput}
	for _, t := range req.Tools {
		for _, f := range t.Functions {
			s.tool(f.Name, f.Description, f.Parameters)
		}
	}
	for i, c := range append([]content{req.System}, req.Contents...) {
		if c.Parts == nil {
			continue
		}
		var parts []geminiPart
		if err := strict(c.Parts, &parts); err != nil {
			return s, err
		}
		converted := make([]loop.Part, len(parts))
		for j, p := range parts {
			converted[j] = p.part()
		}
		switch {
		case i == 0:
			for _, p := range converted {
				s.instruct(p.Text)
			}
		case c.Role == "model":
			s.add(loop.RoleAssistant, &loop.Native{Wire: "gemini", JSON: c.Parts}, converted...)
		default:
			s.add(loop.RoleUser, nil, converted...)
		}
	}
	return s, nil
}
