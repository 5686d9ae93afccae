package openai

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// fragments are kinds of streams in which something grows with every event.
var fragments = map[string]func(i int) string{
	"text":      func(int) string { return `{"content":"word "}` },
	"reasoning": func(int) string { return `{"reasoning_content":"word "}` },
	"thinking": func(int) string {
		return `{"content":[{"type":"thinking","thinking":[{"type":"text","text":"word "}]}]}`
	},
	"details": func(int) string {
		return `{"reasoning_details":[{"type":"reasoning.text","text":"word ","index":0}]}`
	},
	"arguments": func(int) string { return `{"tool_calls":[{"index":0,"function":{"arguments":"word "}}]}` },
	"a name":    func(int) string { return `{"tool_calls":[{"index":0,"function":{"name":"word "}}]}` },
	"calls": func(i int) string {
		return fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"%d","function":{"name":"a","arguments":"{}"}}]}`, i, i)
	},
	"calls without an index": func(i int) string {
		return fmt.Sprintf(`{"tool_calls":[{"id":"%d","function":{"name":"a","arguments":"{}"}}]}`, i)
	},
}

// streamOf is a stream of n fragments with its end.
func streamOf(n int, fragment func(int) string) io.Reader {
	var b strings.Builder
	for i := range n {
		b.WriteString(`data: {"id":"x","model":"m","choices":[{"index":0,"delta":` + fragment(i) + "}]}\n\n")
	}
	b.WriteString(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\ndata: [DONE]\n\n")
	return strings.NewReader(b.String())
}

// take reads a stream to its end.
func take(t testing.TB, r io.Reader) loop.ModelAnswer {
	t.Helper()
	a := &answer{}
	a.message.emit = func(loop.Delta) {}
	if err := a.events(provider.NewEvents(bufio.NewReader(r)), func() {}); err != nil {
		t.Fatalf("events: %v", err)
	}
	result, err := a.result()
	if err != nil {
		t.Fatalf("result: %v", err)
	}
	return result
}

// TestFragmentsAreLinear: ten times the fragments allocate ten times the memory.
// It runs alone, because it counts what the whole process allocates.
func TestFragmentsAreLinear(t *testing.T) {
	const few, many = 1000, 10_000
	for name, fragment := range fragments {
		allocated := func(n int) float64 {
			r := streamOf(n, fragment)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			take(t, r)
			runtime.ReadMemStats(&after)
			return float64(after.TotalAlloc - before.TotalAlloc)
		}
		small, large := allocated(few), allocated(many)
		if ratio := large / small; ratio > 2*many/few {
			t.Errorf("%s: %d fragments allocate %.0f bytes, %d allocate %.0f: %.1f times as many", name, few, small, many, large, ratio)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	for _, name := range []string{"text", "arguments"} {
		b.Run(name, func(b *testing.B) {
			raw, err := io.ReadAll(streamOf(1000, fragments[name]))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				take(b, strings.NewReader(string(raw)))
			}
		})
	}
}

// benchmarkRun is the transcript of a run of n iterations.
func benchmarkRun(n int) []loop.Message {
	messages := []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("go")}, Seq: 1}}
	for i := range n {
		id, own := fmt.Sprintf("c%d-1", i+1), fmt.Sprintf("call_%d", i)
		native := fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"read","arguments":"{}"}}]}`, own)
		messages = append(messages,
			loop.Message{
				Role: loop.RoleAssistant, Seq: int64(2*i + 2), Native: &loop.Native{Wire: wire, JSON: json.RawMessage(native)},
				Parts: []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: own, Name: "read", Args: "{}"}}},
			},
			loop.Message{Role: loop.RoleUser, Seq: int64(2*i + 3), Parts: []loop.Part{{
				Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, ProviderID: own, Outcome: loop.OutcomeOK, Content: strings.Repeat("text ", 400)},
			}}},
		)
	}
	return messages
}

// BenchmarkEncode50Iterations builds the requests of a run of 50 iterations.
func BenchmarkEncode50Iterations(b *testing.B) {
	messages := benchmarkRun(50)
	p := profileAt("")
	for _, memo := range []bool{true, false} {
		b.Run(fmt.Sprintf("memo=%t", memo), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := loop.ModelRequest{Model: "m", MaxOutputTokens: 1024, ToolsAllowed: true}
				if memo {
					req.Memo = &loop.Memo{}
				}
				for n := 1; n <= len(messages); n += 2 {
					req.Messages = messages[:n]
					if _, err := p.encode(req); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
