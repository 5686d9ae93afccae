package gemini

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// after is a request after n iterations of one call each: a kilobyte of result and
// half a kilobyte of signature per iteration.
func after(n int) loop.ModelRequest {
	req := loop.ModelRequest{
		Model: "gemini-3-pro-preview", Instructions: "Be brief.", MaxOutputTokens: 4096, ToolsAllowed: true,
		Tools:    []loop.ToolSpec{{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)}},
		Messages: []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("Count.")}}},
	}
	for i := range n {
		id := fmt.Sprintf("c%d-1", i+1)
		req.Messages = append(req.Messages, loop.Message{
			Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, Name: "add", Args: "{}"}}},
			Native: &loop.Native{Wire: wire, JSON: json.RawMessage(fmt.Sprintf(
				`[{"functionCall":{"name":"add","args":{"n":%d}},"thoughtSignature":%q}]`, i, strings.Repeat("Ab+/", 128)))},
		}, loop.Message{Role: loop.RoleUser, Parts: []loop.Part{{Kind: loop.PartToolResult, Result: &loop.ToolResult{
			CallID: id, Name: "add", Outcome: loop.OutcomeOK, Content: strings.Repeat("the result is 5\n", 64),
		}}}})
	}
	for i := range req.Messages {
		req.Messages[i].Seq = int64(i + 1)
	}
	return req
}

// BenchmarkEncode writes the requests of a run of 50 iterations.
func BenchmarkEncode(b *testing.B) {
	const iterations = 50
	whole := after(iterations)
	for name, remember := range map[string]bool{"with memo": true, "without": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req := whole
				if remember {
					req.Memo = &loop.Memo{}
				}
				for n := range iterations {
					req.Messages = whole.Messages[:1+2*n]
					if _, err := encode(req); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkAnswer reads a recorded stream through a local server.
func BenchmarkAnswer(b *testing.B) {
	raw, err := os.ReadFile("testdata/answers/text-stream.json")
	if err != nil {
		b.Fatal(err)
	}
	var recording struct {
		Response struct {
			SSE string `json:"sse"`
		} `json:"response"`
	}
	if err := json.Unmarshal(raw, &recording); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(recording.Response.SSE)) // a client that has gone ends the benchmark by itself
	}))
	defer server.Close()
	client := New(Config{BaseURL: server.URL})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Generate(b.Context(), after(0)); err != nil {
			b.Fatal(err)
		}
	}
}
