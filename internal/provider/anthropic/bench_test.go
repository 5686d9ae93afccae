package anthropic

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// longRun is a run after so many iterations, each with a result of 4 KiB.
func longRun(iterations int) []loop.ModelRequest {
	req := loop.ModelRequest{
		Model: "claude-sonnet-4-5", Instructions: "Be brief.", MaxOutputTokens: 4096, ToolsAllowed: true,
		Tools:    []loop.ToolSpec{{Name: "look", Schema: json.RawMessage(`{"type":"object"}`)}},
		Messages: []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("Look.")}, Seq: 1}},
	}
	all := []loop.ModelRequest{req}
	for n := 1; n < iterations; n++ {
		id := fmt.Sprint("toolu_", n)
		req.Messages = append(
			req.Messages,
			loop.Message{
				Role: loop.RoleAssistant, Seq: int64(2 * n),
				Parts:  []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: id, Name: "look", Args: "{}"}}},
				Native: &loop.Native{Wire: wire, JSON: json.RawMessage(fmt.Sprintf(`[{"type":"thinking","thinking":"%s","signature":"s"},{"type":"tool_use","id":%q,"name":"look","input":{}}]`, strings.Repeat("hm ", 300), id))},
			},
			loop.Message{
				Role: loop.RoleUser, Seq: int64(2*n + 1),
				Parts: []loop.Part{{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, ProviderID: id, Outcome: loop.OutcomeOK, Content: strings.Repeat(`{"x":1}`, 585)}}},
			},
		)
		all = append(all, req)
	}
	return all
}

// BenchmarkEncode50Iterations writes all requests of one run.
func BenchmarkEncode50Iterations(b *testing.B) {
	requests := longRun(50)
	client := New(Config{APIKey: "k"})
	for name, remember := range map[string]bool{"memo": true, "none": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var memo *loop.Memo
				if remember {
					memo = &loop.Memo{}
				}
				for _, req := range requests {
					req.Memo = memo
					if _, err := client.encode(req); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// longAnswer is a stream of so many small fragments.
func longAnswer(deltas int) string {
	return `data: {"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":3,"output_tokens":1}}}` + "\n\n" +
		`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n" +
		strings.Repeat(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ab"}}`+"\n\n", deltas) +
		`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}` + "\n\n" +
		`data: {"type":"message_stop"}` + "\n\n"
}

func take(tb testing.TB, stream string) loop.ModelAnswer {
	tb.Helper()
	a := &answer{open: map[int]*block{}}
	if err := a.read(&provider.Response{Reader: bufio.NewReader(strings.NewReader(stream))}); err != nil {
		tb.Fatal(err)
	}
	out, err := a.result()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// BenchmarkAnswer reads answers of growing length; the time of one fragment stays.
func BenchmarkAnswer(b *testing.B) {
	for _, deltas := range []int{1_000, 100_000, 1_000_000} {
		stream := longAnswer(deltas)
		b.Run(fmt.Sprint(deltas), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				take(b, stream)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(deltas), "ns/delta")
		})
	}
}
