package openai_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func TestProfilesAreValid(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range openai.Profiles() {
		if err := p.Validate(); err != nil {
			t.Errorf("Validate: %v", err)
		}
		named, err := openai.ProfileNamed(p.Name)
		if err != nil || named != p {
			t.Errorf("ProfileNamed(%q) = %+v, %v", p.Name, named, err)
		}
		names = append(names, p.Name)
	}
	want := []string{"openai", "azure", "bedrock", "deepseek", "gemini", "groq", "llamacpp", "mistral", "ollama", "openrouter", "vllm", "xai", openai.Compatible}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if _, err := openai.ProfileNamed("grok"); err == nil || !strings.Contains(err.Error(), "xai") {
		t.Errorf("ProfileNamed of an unknown name: %v, want the list of names", err)
	}
}

// TestProfilesCannotBeChanged: the list is a copy.
func TestProfilesCannotBeChanged(t *testing.T) {
	t.Parallel()
	openai.Profiles()[0].Name = "other"
	if got := openai.Profiles()[0].Name; got != "openai" {
		t.Errorf("the first profile is now %q", got)
	}
}

func TestProfileValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*openai.Profile)
		want   string // in the error
	}{
		{func(p *openai.Profile) { p.OutputLimit = "tokens" }, `output_limit "tokens": write max_tokens or max_completion_tokens`},
		{func(p *openai.Profile) { p.Effort = "" }, "effort"},
		{func(p *openai.Profile) { p.NoCalls = "never" }, "no_calls"},
		{func(p *openai.Profile) { p.Replay = "maybe" }, "replay"},
		{func(p *openai.Profile) { p.Structured = "yes" }, `structured "yes": write json_schema or json_object or none`},
		{func(p *openai.Profile) { p.CallIDs = "short" }, "call_ids"},
		{func(p *openai.Profile) { p.Images = openai.MediaDocumentURL }, "images"},
		{func(p *openai.Profile) { p.Documents = "file" }, "documents"},
		{func(p *openai.Profile) { p.KeyHeader = "" }, "key_header"},
		{func(p *openai.Profile) { p.CacheKeyHeader = "a b" }, "cache_key_header"},
		{func(p *openai.Profile) { p.Query = "?api-version=1" }, "without a question mark"},
		{func(p *openai.Profile) { p.Query = "a=%zz" }, "query"},
		{func(p *openai.Profile) { p.BaseURL = "localhost" }, "http://"},
	} {
		p := named(t, openai.Compatible)
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate: %v, want %q", err, c.want)
		}
	}
}

// TestProfileOverride: a configuration file changes single members of a row.
func TestProfileOverride(t *testing.T) {
	t.Parallel()
	got, want := named(t, "mistral"), named(t, "mistral")
	if err := yaml.Unmarshal([]byte("base_url: https://proxy.example.com/v1\nuser_after_tool: true\nneeds_key: false\n"), &got); err != nil {
		t.Fatalf("Unmarshal: %v", err)
	}
	want.BaseURL, want.UserAfterTool, want.NeedsKey = "https://proxy.example.com/v1", true, false
	if diff := cmp.Diff(want, got); diff != "" || got.Validate() != nil {
		t.Errorf("profile (-want +got):\n%s", diff)
	}
}

func named(t *testing.T, name string) openai.Profile {
	t.Helper()
	p, err := openai.ProfileNamed(name)
	if err != nil {
		t.Fatalf("ProfileNamed: %v", err)
	}
	return p
}

// wireRequest is a request as a server far away would get it.
type wireRequest struct {
	address string
	header  http.Header
	body    string
}

// sentWith returns the request that a client with the config makes of req.
func sentWith(t *testing.T, c openai.Config, req loop.ModelRequest) wireRequest {
	t.Helper()
	var got wireRequest
	c.HTTPClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		raw, err := io.ReadAll(r.Body)
		got = wireRequest{address: r.URL.String(), header: r.Header, body: string(raw)}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(textAnswer))}, err
	})}
	if err := c.Validate(); err != nil {
		t.Fatalf("Validate: %v", err)
	}
	if _, err := openai.New(c).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return got
}

// TestProfileByHost: without a profile, the address decides.
func TestProfileByHost(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"":                                       `"max_completion_tokens":512,"stream":true,"stream_options":{"include_usage":true},"prompt_cache_key":"run-1"`,
		"https://r.openai.azure.com/openai/v1":   `"prompt_cache_key":"run-1"`,
		"https://api.mistral.ai/v1":              `"max_tokens":512,"stream":true,"prompt_cache_key":"run-1"`,
		"https://api.groq.com/openai/v1":         `"max_completion_tokens":512`,
		"http://localhost:11434/v1":              `"max_tokens":512`,
		"https://models.example.com/v1":          `"max_tokens":512,"stream":true,"stream_options":{"include_usage":true},"messages"`,
		"https://notapi.openai.com.example.com/": `"max_tokens":512`,
	} {
		got := sentWith(t, openai.Config{APIKey: providertest.Key, BaseURL: base}, transcript())
		if !strings.Contains(got.body, want) {
			t.Errorf("%q: %s is not in %s", base, want, got.body)
		}
	}
}

// TestAzure: a header of its own for the key, and a version in the query of the older endpoint.
func TestAzure(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, BaseURL: "https://r.openai.azure.com/openai/deployments/d", Profile: named(t, "azure")}
	c.Profile.Query = "api-version=2024-10-21"
	got := sentWith(t, c, providertest.Ask())
	if got.address != "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21" {
		t.Errorf("sent to %s", got.address)
	}
	if got.header.Get("api-key") != providertest.Key || got.header.Get("Authorization") != "" {
		t.Errorf("sent with %v", got.header)
	}
}

// TestExtraHeaders: gateways want names of their callers.
func TestExtraHeaders(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, Profile: named(t, "openrouter"), Header: http.Header{"x-title": {"loopd"}}}
	got := sentWith(t, c, providertest.Ask())
	if got.header.Get("X-Title") != "loopd" || got.header.Get("Authorization") != "Bearer "+providertest.Key {
		t.Errorf("sent with %v", got.header)
	}
	if got.address != "https://openrouter.ai/api/v1/chat/completions" {
		t.Errorf("sent to %s", got.address)
	}
}

// TestCacheKeyHeader: xAI routes by a header.
func TestCacheKeyHeader(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, Profile: named(t, "xai")}
	got := sentWith(t, c, transcript())
	if got.header.Get("x-grok-conv-id") != "run-1" || strings.Contains(got.body, "run-1") {
		t.Errorf("sent %s with %v", got.body, got.header)
	}
	if got := sentWith(t, c, providertest.Ask()); got.header["X-Grok-Conv-Id"] != nil {
		t.Errorf("sent a cache key that the request has not: %v", got.header)
	}
}

// TestNoCallsByOmission: a server that ignores tool_choice gets no tools to call.
func TestNoCallsByOmission(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.ToolsAllowed = false
	got := sentWith(t, openai.Config{Profile: named(t, "ollama")}, req)
	if strings.Contains(got.body, `"tools"`) || strings.Contains(got.body, "tool_choice") || !strings.Contains(got.body, `"tool_calls"`) {
		t.Errorf("request is %s", got.body)
	}
	req.ToolsAllowed = true
	if got := sentWith(t, openai.Config{Profile: named(t, "ollama")}, req); !strings.Contains(got.body, `"tools"`) {
		t.Errorf("request is %s", got.body)
	}
}

func TestReasoningEffort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profile string
		ask     loop.Reasoning
		want    string // in the request; empty = nothing of reasoning
	}{
		{"openai", loop.Reasoning{Effort: "high"}, `"reasoning_effort":"high"`},
		{"openai", loop.Reasoning{Effort: "none"}, `"reasoning_effort":"none"`},
		{"openai", loop.Reasoning{}, ""},
		{"openai", loop.Reasoning{Budget: 2000}, ""},
		{"openrouter", loop.Reasoning{Effort: "low"}, `"reasoning":{"effort":"low"}`},
		{"openrouter", loop.Reasoning{Effort: "low", Budget: 2000}, `"reasoning":{"max_tokens":2000}`},
		{"openrouter", loop.Reasoning{Effort: "none", Budget: 2000}, `"reasoning":{"effort":"none"}`},
		{"deepseek", loop.Reasoning{Effort: "high"}, `"reasoning_effort":"high","thinking":{"type":"enabled"}`},
		{"deepseek", loop.Reasoning{Effort: "none"}, `"thinking":{"type":"disabled"}`},
		{"deepseek", loop.Reasoning{}, ""},
		{"vllm", loop.Reasoning{Effort: "medium"}, `"chat_template_kwargs":{"enable_thinking":true,"reasoning_effort":"medium"}`},
		{"llamacpp", loop.Reasoning{Effort: "none"}, `"chat_template_kwargs":{"enable_thinking":false}`},
	} {
		req := providertest.Ask()
		req.Reasoning = c.ask
		got := sentWith(t, openai.Config{APIKey: providertest.Key, Profile: named(t, c.profile)}, req).body
		members := slices.ContainsFunc([]string{`"reasoning`, `"thinking"`, `"chat_template_kwargs"`}, func(m string) bool { return strings.Contains(got, m) })
		if !strings.Contains(got, c.want) || members != (c.want != "") {
			t.Errorf("%s, %+v: request is %s, want %s", c.profile, c.ask, got, c.want)
		}
	}
	omitted := named(t, "vllm")
	omitted.Effort = openai.EffortOmitted
	req := providertest.Ask()
	req.Reasoning.Effort = "high"
	if got := sentWith(t, openai.Config{Profile: omitted}, req).body; strings.Contains(got, "high") {
		t.Errorf("request is %s", got)
	}
}

// TestMistral: ids of nine characters, content that is not null, and an
// assistant message between results and a user.
func TestMistral(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.Messages[1].Parts[1].Call.ProviderID = "abcDEF123"
	req.Messages[4].Parts[0].Result.ProviderID = "abcDEF123"
	req.Messages[1].Native = nil
	got := sentWith(t, openai.Config{APIKey: providertest.Key, Profile: named(t, "mistral")}, req).body
	want := `{"role":"assistant","content":"","tool_calls":[{"id":"5Wr21Ozma","type":"function","function":{"name":"add","arguments":"{\"a\": 2}"}},{"id":"abcDEF123",`
	for _, part := range []string{
		want, `{"role":"tool","tool_call_id":"5Wr21Ozma","content":"5"},{"role":"tool","tool_call_id":"abcDEF123","content":"no such number"},` +
			`{"role":"assistant","content":"I have read the results."},{"role":"user"`,
	} {
		if !strings.Contains(got, part) {
			t.Errorf("%s is not in %s", part, got)
		}
	}
}

// TestMistralNative: a stored message loses the ids and members that are refused.
func TestMistralNative(t *testing.T) {
	t.Parallel()
	got := sentWith(t, openai.Config{APIKey: providertest.Key, Profile: named(t, "mistral")}, transcript()).body
	if strings.Contains(got, "call_a") || strings.Contains(got, "call_b") || strings.Contains(got, "reasoning_content") {
		t.Errorf("request is %s", got)
	}
}

// TestReasoningIsStripped: Groq refuses its own models' reasoning in a history.
func TestReasoningIsStripped(t *testing.T) {
	t.Parallel()
	got := sentWith(t, openai.Config{APIKey: providertest.Key, Profile: named(t, "groq")}, transcript()).body
	if strings.Contains(got, "reasoning") || !strings.Contains(got, `"id":"call_a"`) {
		t.Errorf("request is %s", got)
	}
}

// TestReasoningIsRequired: DeepSeek refuses calls without any, so there is an
// empty one where another provider made the call.
func TestReasoningIsRequired(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, Profile: named(t, "deepseek")}
	if got := sentWith(t, c, transcript()).body; !strings.Contains(got, `"reasoning_content":"hm"`) {
		t.Errorf("request is %s", got)
	}
	req := transcript()
	req.Messages[1].Native = nil
	if got := sentWith(t, c, req).body; !strings.Contains(got, `"reasoning_content":""`) {
		t.Errorf("request is %s", got)
	}
}

// TestForeignReasoning: what another provider of the same wire thought is not
// sent, what the same one thought is.
func TestForeignReasoning(t *testing.T) {
	t.Parallel()
	c := openai.Config{Profile: named(t, "vllm")}
	req := transcript()
	req.Provider = "local"
	for model, kept := range map[string]bool{"local/qwen": true, "": true, "other/qwen": false} {
		req.Messages[1].Model = model
		got := sentWith(t, c, req).body
		if strings.Contains(got, "reasoning_content") != kept || !strings.Contains(got, `"id":"call_b"`) {
			t.Errorf("%q: request is %s", model, got)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	bad := named(t, "xai")
	bad.Effort = "much"
	for _, c := range []struct {
		config openai.Config
		want   string
	}{
		{openai.Config{APIKey: "k", Profile: named(t, "azure")}, "base URL is empty"},
		{openai.Config{Profile: named(t, "groq")}, "API key is empty"},
		{openai.Config{APIKey: "k", Profile: bad}, `effort "much"`},
		{openai.Config{APIKey: "k", Header: http.Header{"Authorization": {"Bearer x"}}}, "set the API key instead"},
		{openai.Config{APIKey: "k", Profile: openai.Profile{Name: "mine"}}, "output_limit"},
	} {
		if err := c.config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate: %v, want %q", err, c.want)
		}
	}
}

func media(kind loop.PartKind, m loop.Media) loop.Part { return loop.Part{Kind: kind, Media: &m} }

func TestAttachments(t *testing.T) {
	t.Parallel()
	image := media(loop.PartImage, loop.Media{Type: "image/png", Data: []byte("png")})
	there := media(loop.PartImage, loop.Media{Type: "image/png", URL: "https://example.com/a.png"})
	pdf := media(loop.PartDocument, loop.Media{Type: "application/pdf", Name: "a.pdf", Data: []byte("%PDF")})
	linked := media(loop.PartDocument, loop.Media{Type: "application/pdf", URL: "https://example.com/a.pdf"})
	note := media(loop.PartDocument, loop.Media{Type: "text/plain", Name: "a.txt", Data: []byte("hi\xff")})
	for _, c := range []struct {
		profile string
		parts   []loop.Part
		want    string // content
	}{
		{"openai", []loop.Part{loop.TextPart("look"), image}, `[{"type":"image_url","image_url":{"url":"data:image/png;base64,cG5n"}},{"type":"text","text":"look"}]`},
		{"openai", []loop.Part{there}, `[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]`},
		{"openai", []loop.Part{pdf}, `[{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERg=="}}]`},
		{"openrouter", []loop.Part{linked}, `[{"type":"file","file":{"filename":"document.pdf","file_data":"https://example.com/a.pdf"}}]`},
		{"mistral", []loop.Part{pdf}, `[{"type":"document_url","document_url":"data:application/pdf;base64,JVBERg==","document_name":"a.pdf"}]`},
		{"deepseek", []loop.Part{note, loop.TextPart("read")}, `[{"type":"text","text":"a.txt\nhi` + "\uFFFD" + `"},{"type":"text","text":"read"}]`},
	} {
		req := providertest.Ask()
		req.Messages = []loop.Message{user(c.parts...)}
		got := sentWith(t, openai.Config{APIKey: providertest.Key, Profile: named(t, c.profile)}, req).body
		if !strings.Contains(got, `{"role":"user","content":`+c.want+`}`) {
			t.Errorf("%s: %s is not in %s", c.profile, c.want, got)
		}
	}
}

// TestAttachmentsRefused: what the server does not take costs no request.
func TestAttachmentsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profile string
		part    loop.Part
		want    string
	}{
		{"deepseek", media(loop.PartImage, loop.Media{Type: "image/png", Data: []byte("png")}), "takes no images"},
		{"ollama", media(loop.PartImage, loop.Media{Type: "image/png", Name: "a.png", URL: "https://example.com/a.png"}), "send data instead of url"},
		{"openai", media(loop.PartDocument, loop.Media{Type: "application/pdf", URL: "https://example.com/a.pdf"}), "send data instead of url"},
		{"openai", media(loop.PartDocument, loop.Media{Type: "application/msword", Data: []byte("x")}), "reads application/pdf only"},
		{"groq", media(loop.PartDocument, loop.Media{Type: "application/pdf", Data: []byte("x")}), "takes no documents"},
	} {
		req := providertest.Ask()
		req.Messages = []loop.Message{user(c.part)}
		client := openai.New(openai.Config{APIKey: providertest.Key, Profile: named(t, c.profile), BaseURL: "http://127.0.0.1:1"})
		_, err := client.Generate(t.Context(), req)
		e, ok := errors.AsType[*loop.ModelError](err)
		if !ok || e.Class != loop.ErrorRequest || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: got %v, want a refusal with %q", c.profile, err, c.want)
		}
	}
}
