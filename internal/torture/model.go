package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// asked is a line of the model's ledger: one request.
type asked struct {
	At       time.Time `json:"at"`
	Run      string    `json:"run"`
	Tag      string    `json:"tag"`
	Messages int       `json:"messages"`
	In       int64     `json:"in"`                 // tokens billed
	Out      int64     `json:"out"`                // tokens billed
	Fault    string    `json:"fault,omitempty"`    // what the request broke: see unpaired
	Answered string    `json:"answered,omitempty"` // "" for a good answer
}

// model is the scripted model server. Its answer follows from the request alone, but
// that some requests fail the first time.
type model struct {
	ledger *ledger[asked]

	mu   sync.Mutex
	seen map[uint32]bool
}

// message is as much of one in a request as the model reads.
type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []struct {
		ID string `json:"id"`
	} `json:"tool_calls"`
}

// text is a message's content, be it plain or in parts.
func (m message) text() string {
	var plain string
	if json.Unmarshal(m.Content, &plain) == nil {
		return plain
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Content, &parts)
	for _, part := range parts {
		plain += part.Text
	}
	return plain
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request was cut: nobody asked anything
	}
	var request struct {
		Messages []message       `json:"messages"`
		Choice   json.RawMessage `json:"tool_choice"`
		Run      string          `json:"prompt_cache_key"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p, iteration := where(request.Messages)
	failure := m.failure(body)
	line := asked{
		At: time.Now(), Run: request.Run, Tag: p.tag, Messages: len(request.Messages), In: int64(len(body) / 4), Out: 40,
		Fault: unpaired(request.Messages), Answered: failure,
	}
	if failure == "busy" || failure == "error" || failure == "cut" {
		line.In, line.Out = 0, 0
	}
	if err := m.ledger.write(line); err != nil {
		panic(http.ErrAbortHandler)
	}
	// It thinks for a while, so that workers are lost meanwhile.
	if !pause(r.Context(), time.Duration(chance(string(body), 700))*time.Millisecond) {
		panic(http.ErrAbortHandler)
	}
	switch failure {
	case "busy":
		w.Header().Set("Retry-After", "1")
		http.Error(w, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`, http.StatusTooManyRequests)
	case "error":
		http.Error(w, `{"error":{"message":"it broke"}}`, http.StatusInternalServerError)
	case "cut":
		panic(http.ErrAbortHandler)
	default:
		final := strings.Contains(string(request.Choice), "none") || iteration >= len(p.iterations)
		m.answer(w, p, iteration, final, failure == "half", line)
	}
}

// where finds the run's plan and how far it has come.
func where(messages []message) (plan, int) {
	var p plan
	iteration := 0
	for _, m := range messages {
		if found, ok := parsePlan(m.text()); ok && m.Role == "user" && p.tag == "" {
			p = found
		}
		if m.Role == "assistant" && len(m.ToolCalls) > 0 {
			iteration++
		}
	}
	return p, iteration
}

// unpaired says which call of the transcript lacks its one result.
func unpaired(messages []message) string {
	open := map[string]bool{}
	for i, m := range messages {
		switch {
		case m.Role == "tool" && !open[m.ToolCallID]:
			return fmt.Sprintf("message %d is a second result of %q, or of no call", i, m.ToolCallID)
		case m.Role == "tool":
			delete(open, m.ToolCallID)
		case len(open) > 0:
			return fmt.Sprintf("message %d comes before the results of %v", i, open)
		}
		for _, c := range m.ToolCalls {
			open[c.ID] = true
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("the request has no results of %v", open)
	}
	return ""
}

// failure is how a request fails, the first time that it comes. Most do not.
func (m *model) failure(body []byte) string {
	draw := chance(string(body), 1<<31)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[draw] {
		return ""
	}
	m.seen[draw] = true
	switch draw % 50 {
	case 0:
		return "busy"
	case 1:
		return "error"
	case 2:
		return "half"
	case 3:
		return "cut"
	}
	return ""
}

// answer streams it. A half answer ends before its end.
func (m *model) answer(w http.ResponseWriter, p plan, iteration int, final, half bool, line asked) {
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(v any) {
		text, _ := json.Marshal(v) //nolint:errchkjson // maps of plain values
		fmt.Fprintf(w, "data: %s\n\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	choice := func(delta map[string]any, finish any) map[string]any {
		return map[string]any{"id": "x", "model": "gpt-4.1-mini", "choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}}
	}
	if final {
		say(choice(map[string]any{"role": "assistant", "content": "done " + p.tag}, nil))
		say(choice(map[string]any{}, "stop"))
	} else {
		say(choice(map[string]any{"role": "assistant", "content": fmt.Sprintf("iteration %d of %s", iteration+1, p.tag)}, nil))
		for i, wanted := range p.iterations[iteration] {
			say(choice(map[string]any{"tool_calls": []any{map[string]any{
				"index": i, "id": fmt.Sprintf("call_%s_%d_%d", p.tag, iteration, i), "type": "function",
				"function": map[string]any{"name": wanted.tool, "arguments": p.args(wanted, iteration, i)},
			}}}, nil))
			if half {
				panic(http.ErrAbortHandler)
			}
		}
		say(choice(map[string]any{}, "tool_calls"))
	}
	say(map[string]any{"id": "x", "choices": []any{}, "usage": map[string]any{"prompt_tokens": line.In, "completion_tokens": line.Out, "total_tokens": line.In + line.Out}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}
