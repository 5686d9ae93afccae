package gemini_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/gemini"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func token(context.Context) (string, error) { return "ya29.secret-token", nil }

func TestValidate(t *testing.T) {
	t.Parallel()
	vertex := "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"
	for _, c := range []struct {
		name   string
		config gemini.Config
		want   string // part of the error, or "" for none
	}{
		{"zero", gemini.Config{}, "API key is empty; set it"},
		{"key", gemini.Config{APIKey: "k"}, ""},
		{"local server without a key", gemini.Config{BaseURL: "http://localhost:8080/v1beta"}, ""},
		{"key and token", gemini.Config{APIKey: "k", Token: token}, "leave one out"},
		{"Vertex AI", gemini.Config{Token: token, BaseURL: vertex + "/publishers/google"}, ""},
		{"Vertex AI without a publisher", gemini.Config{Token: token, BaseURL: vertex}, "end it with /publishers/google"},
		{"no version", gemini.Config{APIKey: "k", BaseURL: "https://generativelanguage.googleapis.com/"}, "end it with /v1beta"},
		{"no scheme", gemini.Config{APIKey: "k", BaseURL: "generativelanguage.googleapis.com"}, "http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.config.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestVertex: the same paths under another base, and a token instead of the key,
// which nobody gets to read.
func TestVertex(t *testing.T) {
	t.Parallel()
	server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		if _, err := w.Write([]byte(`{"error":{"code":403,"message":"` + r.Header.Get("Authorization") + ` may not","status":"PERMISSION_DENIED"}}`)); err != nil {
			t.Errorf("server: %v", err)
		}
	}))
	client := gemini.New(gemini.Config{
		Token: token, BaseURL: server.URL + "/v1/projects/p/locations/us-east5/publishers/google/",
		Header: http.Header{"x-goog-user-project": {"billing"}},
	})
	_, err := client.Generate(t.Context(), providertest.Ask())
	if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorAuth || e.Code != "PERMISSION_DENIED" || e.Message != "Bearer [redacted] may not" {
		t.Errorf("error is %#v", err)
	}
	r := server.Last(t)
	if r.Path != "/v1/projects/p/locations/us-east5/publishers/google/models/test-model:streamGenerateContent" ||
		r.Header.Get("Authorization") != "Bearer ya29.secret-token" || r.Header.Get("X-Goog-Api-Key") != "" || r.Header.Get("X-Goog-User-Project") != "billing" {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}
}

func TestNoToken(t *testing.T) {
	t.Parallel()
	server := answering(t, textAnswer)
	client := gemini.New(gemini.Config{BaseURL: server.URL, Token: func(context.Context) (string, error) { return "", errors.New("metadata server is down") }})
	_, err := client.Generate(t.Context(), providertest.Ask())
	if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorNotStarted || len(server.Requests()) != 0 {
		t.Errorf("error is %v after %d requests", err, len(server.Requests()))
	}
}

// TestModelIsOneSegment: a name cannot lead to another place.
func TestModelIsOneSegment(t *testing.T) {
	t.Parallel()
	var target string
	server := providertest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { target = r.RequestURI }))
	req := providertest.Ask()
	req.Model = "models/../files?x=#"
	if _, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), req); err == nil {
		t.Error("an empty answer passed for one")
	}
	if want := "/v1beta/models/..%2Ffiles%3Fx=%23:streamGenerateContent?alt=sse"; target != want {
		t.Errorf("sent to %s, want %s", target, want)
	}
}

func TestCountTokens(t *testing.T) {
	t.Parallel()
	counted := providertest.Load(t, os.DirFS("testdata/count"), "tokens.json")
	server := providertest.Serve(t, counted)
	tokens, err := newGemini(server.URL, providertest.Tuning{}).CountTokens(t.Context(), transcript())
	if err != nil || tokens != 10 {
		t.Errorf("counted %d, %v", tokens, err)
	}
	r := server.Last(t)
	_, contents, _ := strings.Cut(transcriptTail, `"contents"`)
	flat := transcriptHead + `"contents"` + contents
	want := `{"generateContentRequest":{"model":"models/gemini-2.5-pro",` + flat[1:] + `}`
	if diff := cmp.Diff(want, string(r.Body)); diff != "" || r.Path != "/v1beta/models/gemini-2.5-pro:countTokens" {
		t.Errorf("sent to %s (-want +got):\n%s", r.Path, diff)
	}

	vertex := gemini.New(gemini.Config{Token: token, BaseURL: server.URL + "/v1/projects/p/locations/l/publishers/google"})
	if _, err := vertex.CountTokens(t.Context(), transcript()); err != nil {
		t.Errorf("CountTokens: %v", err)
	}
	if diff := cmp.Diff(flat, string(server.Last(t).Body)); diff != "" {
		t.Errorf("on Vertex AI (-want +got):\n%s", diff)
	}
}

func TestCountTokensFails(t *testing.T) {
	t.Parallel()
	for body, class := range map[string]loop.ErrorClass{
		`{}`:     loop.ErrorMidStream,
		`{"tot`:  loop.ErrorServer,
		`"many"`: loop.ErrorServer,
	} {
		server := answering(t, body)
		_, err := newGemini(server.URL, providertest.Tuning{}).CountTokens(t.Context(), providertest.Ask())
		if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != class {
			t.Errorf("%s: error is %v, want class %q", body, err, class)
		}
	}
	server := providertest.Serve(t, providertest.Load(t, recordings, "quoted-429-day.json"))
	_, err := newGemini(server.URL, providertest.Tuning{}).CountTokens(t.Context(), providertest.Ask())
	if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorQuota {
		t.Errorf("error is %v, want class quota", err)
	}
}

// TestExpiredKey: Google's prose differs, its reason does not.
func TestExpiredKey(t *testing.T) {
	t.Parallel()
	server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		if _, err := w.Write([]byte(`[{"error":{"code":400,"message":"API key expired. Please renew the API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]`)); err != nil {
			t.Errorf("server: %v", err)
		}
	}))
	_, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
	if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorAuth {
		t.Errorf("error is %v, want class auth", err)
	}
}
