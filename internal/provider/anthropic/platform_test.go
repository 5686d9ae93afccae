package anthropic_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/anthropic"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	token := func(context.Context) (string, error) { return "t", nil }
	for want, c := range map[string]anthropic.Config{
		"":                     {APIKey: "k"},
		"the API key is empty": {},
		"set Token":            {Vertex: true, APIKey: "k", BaseURL: "https://x.example"},
		"the base URL names":   {Vertex: true, Token: token},
		"http":                 {Token: token, BaseURL: "ftp://x.example"},
	} {
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// vertexPath is where Google keeps Anthropic's models of one project.
const vertexPath = "/v1/projects/p/locations/r/publishers/anthropic"

func vertex(base string) *anthropic.Client {
	return anthropic.New(anthropic.Config{
		Vertex: true, BaseURL: base + vertexPath + "/",
		Token: func(context.Context) (string, error) { return "ya29.secret-token", nil },
	})
}

func TestVertex(t *testing.T) {
	t.Parallel()
	server := answering(t, textAnswer)
	req := transcript()
	req.Model = "claude-sonnet-4-5@20250929"
	if _, err := vertex(server.URL).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	r := server.Last(t)
	if want := vertexPath + "/models/claude-sonnet-4-5@20250929:streamRawPredict"; r.Path != want {
		t.Errorf("sent to %s, want %s", r.Path, want)
	}
	if r.Header.Get("Authorization") != "Bearer ya29.secret-token" || r.Header.Get("X-Api-Key") != "" {
		t.Errorf("headers are %v", r.Header)
	}
	want := `{"anthropic_version":"vertex-2023-10-16","max_tokens":512,"temperature":0.5,"stream":true,` + transcriptTail
	if diff := cmp.Diff(want, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestTokenFails(t *testing.T) {
	t.Parallel()
	server := answering(t, textAnswer)
	c := anthropic.New(anthropic.Config{BaseURL: server.URL, Token: func(context.Context) (string, error) { return "", errors.New("metadata server is down") }})
	_, err := c.Generate(t.Context(), providertest.Ask())
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok || e.Class != loop.ErrorNotStarted || !strings.Contains(e.Message, "metadata server is down") || len(server.Requests()) != 0 {
		t.Errorf("got %v after %d requests", err, len(server.Requests()))
	}
}

// TestTokenIsHidden: like a key, it stays out of what people read.
func TestTokenIsHidden(t *testing.T) {
	t.Parallel()
	server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error":{"message":"refused ` + r.Header.Get("Authorization") + `"}}`))
	}))
	_, err := vertex(server.URL).Generate(t.Context(), providertest.Ask())
	if err == nil || strings.Contains(err.Error(), "ya29") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

// TestHeader: what operators add is sent, and may replace what loopd says.
func TestHeader(t *testing.T) {
	t.Parallel()
	server := answering(t, textAnswer)
	own := http.Header{"anthropic-beta": {"interleaved-thinking-2025-05-14"}, "User-Agent": {"ours"}}
	c := anthropic.New(anthropic.Config{APIKey: providertest.Key, BaseURL: server.URL + "/v1/", Header: own})
	own["User-Agent"] = []string{"changed"}
	if _, err := c.Generate(t.Context(), providertest.Ask()); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	h := server.Last(t).Header
	if h.Get("Anthropic-Beta") != "interleaved-thinking-2025-05-14" || h.Get("User-Agent") != "ours" || h.Get("X-Api-Key") != providertest.Key {
		t.Errorf("headers are %v", h)
	}
}

// TestRate: what the headers say of the limits is in the answer, and in the error
// of an answer that was cut.
func TestRate(t *testing.T) {
	t.Parallel()
	reset := time.Now().Add(time.Minute).UTC().Truncate(time.Second)
	want := loop.RateReport{Requests: loop.RateWindow{Limit: 50, Remaining: 49, Reset: reset}}
	for _, body := range []string{textAnswer, start} {
		server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Anthropic-Ratelimit-Requests-Limit", "50")
			w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "49")
			w.Header().Set("Anthropic-Ratelimit-Requests-Reset", reset.Format(time.RFC3339))
			_, _ = w.Write([]byte(body))
		}))
		answer, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
		got := answer.Rate
		if e, ok := errors.AsType[*loop.ModelError](err); ok {
			got = e.Rate
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rate (-want +got):\n%s", diff)
		}
	}
}

func counting(t *testing.T, status int, body string) *providertest.Server {
	t.Helper()
	return providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
}

func TestCountTokens(t *testing.T) {
	t.Parallel()
	server := counting(t, http.StatusOK, ` {"input_tokens": 2095}`)
	req := transcript()
	req.Reasoning = loop.Reasoning{Budget: 2048, Effort: "low"}
	req.MaxOutputTokens = 4096
	n, err := anthropic.New(anthropic.Config{APIKey: providertest.Key, BaseURL: server.URL}).CountTokens(t.Context(), req)
	if err != nil || n != 2095 {
		t.Fatalf("CountTokens: %d, %v", n, err)
	}
	r := server.Last(t)
	want := `{"model":"claude-sonnet-4-5","thinking":{"type":"enabled","budget_tokens":2048},` +
		strings.ReplaceAll(transcriptTail, `,"cache_control":{"type":"ephemeral"}`, "")
	if diff := cmp.Diff(want, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if r.Path != "/v1/messages/count_tokens" || r.Header.Get("X-Api-Key") != providertest.Key {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}

	if _, err := vertex(server.URL).CountTokens(t.Context(), req); err != nil {
		t.Fatalf("CountTokens on Vertex: %v", err)
	}
	r = server.Last(t)
	if r.Path != vertexPath+"/models/count-tokens:rawPredict" || !strings.HasPrefix(string(r.Body), `{"anthropic_version":"vertex-2023-10-16","model":"claude-sonnet-4-5",`) {
		t.Errorf("sent to %s: %s", r.Path, r.Body)
	}
}

func TestCountTokensFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   loop.ErrorClass
	}{
		{"refused", http.StatusTooManyRequests, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`, loop.ErrorThrottle},
		{"error in a 200", http.StatusOK, `{"type":"error","error":{"type":"not_found_error","message":"no such model"}}`, loop.ErrorRequest},
		{"no count", http.StatusOK, `{"type":"message"}`, loop.ErrorMidStream},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := counting(t, c.status, c.body)
			_, err := anthropic.New(anthropic.Config{APIKey: providertest.Key, BaseURL: server.URL}).CountTokens(t.Context(), providertest.Ask())
			if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != c.want {
				t.Errorf("got %v, want class %q", err, c.want)
			}
		})
	}
}

// TestUsageObject: the raw object of a recorded answer gives the numbers that the
// answer gave.
func TestUsageObject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw      string
		want     loop.Usage
		complete bool
	}{
		{`{"input_tokens":7,"cache_creation_input_tokens":1069,"cache_read_input_tokens":3,"output_tokens":60,"output_tokens_details":{"thinking_tokens":20}}`,
			loop.Usage{InputUncached: 7, CacheRead: 3, CacheWrite5m: 1069, Output: 40, Reasoning: 20}, true},
		{`{"input_tokens":7,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60},"output_tokens":1}`,
			loop.Usage{InputUncached: 7, CacheWrite5m: 40, CacheWrite1h: 60, Output: 1}, true},
		{`{"input_tokens":7}`, loop.Usage{InputUncached: 7}, false},
		{`{"output_tokens":7}`, loop.Usage{Output: 7}, false},
		{`{"input_tokens":-7,"output_tokens":3}`, loop.Usage{Output: 3}, true},
		{`null`, loop.Usage{}, false},
		{`"many"`, loop.Usage{}, false},
	} {
		got, complete := anthropic.Usage(json.RawMessage(c.raw))
		if got != c.want || complete != c.complete {
			t.Errorf("%s: got %+v, complete %v", c.raw, got, complete)
		}
	}
}
