package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// command runs one command line with an environment of its own.
func command(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, Env{Getenv: func(k string) string { return env[k] }, Stdout: &out, Stderr: &errs, Stdin: strings.NewReader("")})
	return code, out.String(), errs.String()
}

// providersFile writes an operator's file.
func providersFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is wrong in the file is named by provider and member, all of it at once.
func TestBadProvidersNameTheMember(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"providers: {groq: {kind: openai, nonsense: x}}":                                                      `unknown field "nonsense"`,
		"providers: {a: {kind: telepathy}}":                                                                   `providers.a.kind: "telepathy" is none of anthropic, openai, openai_responses, gemini`,
		"providers: {Groq: {kind: openai}}":                                                                   "providers.Groq.name: use a-z",
		"providers: {a: {kind: openai, profile: nosuch}}":                                                     `providers.a.profile: openai: profile "nosuch" is not known`,
		"providers: {a: {kind: anthropic, api_key_env: NO_SUCH_KEY}}":                                         "providers.a.api_key_env: NO_SUCH_KEY is not set",
		"providers: {a: {kind: anthropic, api_key_env: K, api_key_file: /k}}":                                 "providers.a.api_key_file: api_key_env is set too",
		"providers: {a: {kind: anthropic, api_key_file: /no/such/key}}":                                       "providers.a.api_key_file: read",
		"providers: {a: {kind: openai, auth: google, base_url: \"http://x/v1\"}}":                             "providers.a.auth: google works with kinds anthropic and gemini",
		"providers: {a: {kind: gemini, auth: kerberos}}":                                                      `providers.a.auth: "kerberos" is not known`,
		"providers: {a: {kind: openai, base_url: \"http://x/v1\", limits: {concurrent: -1}}}":                 "providers.a.limits: use 0 or more",
		"providers: {a: {kind: openai, base_url: \"http://x/v1\", profile: groq, overrides: {no_member: 1}}}": "providers.a.overrides: ",
		"providers: {a: {kind: openai, profile: ollama, shares_key_with: b}}":                                 `providers.a.shares_key_with: "b" is no other provider`,
		"providers: {a: {kind: openai, base_url: \"x\"}, b: {kind: q}}":                                       "providers.b.kind",
	} {
		code, _, stderr := command(t, map[string]string{"K": "secret-key"}, "provider", "list", "--providers", providersFile(t, text))
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %d and %q in:\n%s", text, code, exitUsage, want, stderr)
		}
	}
}

// A key in the environment is all that a well-known provider needs; one with
// another name can be charged like a known one.
func TestProviderListShowsWhatIsConfigured(t *testing.T) {
	t.Parallel()
	file := providersFile(t, "providers: {groq-eu: {kind: openai, profile: groq, api_key_env: K, prices: groq}}")
	code, stdout, stderr := command(t, map[string]string{"LOOPD_ANTHROPIC_API_KEY": "sk-ant-12345678", "K": "gsk-12345678"}, "provider", "list", "--providers", file)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"prices: genai-prices@", "anthropic/claude-sonnet-4-5 ", "groq-eu/llama-3.3-70b-versatile ", "text,image,document"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, stdout)
		}
	}
	for _, hidden := range []string{"\nopenai/", "sk-ant", "gsk-"} {
		if strings.Contains(stdout+stderr, hidden) {
			t.Errorf("%q is in the output", hidden)
		}
	}
}

// completions serves Chat Completions with one body for everything.
func completions(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1"
}

func TestProviderTestSaysWhatWorks(t *testing.T) {
	t.Parallel()
	const call = `data: {"id":"1","model":"gpt-4o-mini-2024","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"ping","arguments":""}}]}}]}` + "\n\n" +
		`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"text\":\"hello\"}"}}]},"finish_reason":"tool_calls"}]}` + "\n\n"
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":10,"total_tokens":110}}` + "\n\ndata: [DONE]\n\n"
	for name, tc := range map[string]struct {
		status int
		body   string
		code   int
		want   []string
	}{
		"all of it": {200, call + usage, 0, []string{"✓ auth", "gpt-4o-mini-2024", "✓ streaming  1 fragments", "✓ tools", "✓ usage      100 tokens read, 10 written, 0.000021 USD"}},
		"no usage":  {200, call + "data: [DONE]\n\n", 1, []string{"✓ tools", "✗ usage      not reported"}},
		"no tools":  {200, `data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}` + "\n\n" + usage, 1, []string{"✗ tools"}},
		"wrong key": {401, `{"error":{"message":"Incorrect API key provided: sk-abcdefgh","code":"invalid_api_key"}}`, 1, []string{"✗ auth", "The key is refused"}},
		"no credit": {429, `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`, 1, []string{"✗ quota", "no credit left"}},
		"a website": {200, "<!doctype html><title>hello</title>", 1, []string{"✗ request"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"LOOPD_OPENAI_API_KEY": "sk-abcdefgh"}
			code, stdout, stderr := command(t, env, "provider", "test", "openai", "--model", "gpt-4o-mini", "--openai-base-url", completions(t, tc.status, tc.body))
			if code != tc.code {
				t.Errorf("exit code %d, want %d: %s", code, tc.code, stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is missing in:\n%s", want, stdout)
				}
			}
			if strings.Contains(stdout+stderr, "sk-abcdefgh") {
				t.Errorf("the key is in the output:\n%s%s", stdout, stderr)
			}
		})
	}
}

func TestProviderTestNeedsAProvider(t *testing.T) {
	t.Parallel()
	code, _, stderr := command(t, map[string]string{"LOOPD_GEMINI_API_KEY": "12345678"}, "provider", "test", "anthropic")
	if code != exitUsage || !strings.Contains(stderr, `provider "anthropic" is not configured: there are gemini`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// The limits of the file reach the engine under the provider's name.
func TestProviderLimits(t *testing.T) {
	t.Parallel()
	c := config{getenv: func(string) string { return "" }, providers: providersFile(t,
		"providers: {local: {kind: openai, profile: ollama, limits: {requests_per_minute: 30, tokens_per_minute: 6000, concurrent: 2}}}")}
	opened, err := openProviders(c)
	if err != nil {
		t.Fatal(err)
	}
	got := opened.limits["local"]
	if got.RequestsPerMinute != 30 || got.TokensPerMinute != 6000 || got.Concurrent != 2 {
		t.Errorf("limits %+v", got)
	}
}
