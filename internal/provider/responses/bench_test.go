package responses_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
	"github.com/loopd/loopd/internal/provider/responses"
)

// roundTripper answers without a network, so that a benchmark measures the adapter.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// against is a client whose server always answers with body. It counts the bytes
// that it is sent.
func against(body string, bytes *int64) *responses.Client {
	return responses.New(responses.Config{APIKey: providertest.Key, HTTPClient: &http.Client{
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			*bytes += r.ContentLength
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}),
	}})
}

// BenchmarkEncode50Iterations makes the 50 requests of a run with 50 iterations,
// about 3 kB each.
func BenchmarkEncode50Iterations(b *testing.B) {
	all := conversation(50)
	for _, c := range []struct {
		name string
		memo func() *loop.Memo
	}{
		{"memo", func() *loop.Memo { return &loop.Memo{} }},
		{"plain", func() *loop.Memo { return nil }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var bytes int64
			client := against(whole(`"status":"completed"`, okMessage), &bytes)
			for b.Loop() {
				memo := c.memo()
				for n := 1; n < len(all); n += 2 {
					req := transcript()
					req.Messages, req.Memo = all[:n], memo
					if _, err := client.Generate(b.Context(), req); err != nil {
						b.Fatalf("Generate: %v", err)
					}
				}
			}
			b.ReportMetric(float64(bytes)/float64(b.N), "sent-B/op")
		})
	}
}

// BenchmarkAnswer reads a recorded stream.
func BenchmarkAnswer(b *testing.B) {
	raw := recorded(b, "openai/responses-function-call-stream")
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	var bytes int64
	client := against(raw, &bytes)
	req := providertest.Ask()
	req.Emit = func(loop.Delta) {}
	for b.Loop() {
		if _, err := client.Generate(b.Context(), req); err != nil {
			b.Fatalf("Generate: %v", err)
		}
	}
}

func recorded(b *testing.B, name string) string {
	b.Helper()
	var x providertest.Exchange
	raw, err := os.ReadFile("testdata/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(raw, &x)
	}
	if err != nil {
		b.Fatalf("recording: %v", err)
	}
	return x.Response.SSE
}
