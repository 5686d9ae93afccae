package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// careless calls a tool that repeats what it was sent, one that fails with it, and a
// provider that refuses its key in so many words.
const careless = `
models:
  careless:
    answers:
      - calls: [{name: echo, args: {n: 1}}, {name: refuse, args: {n: 1}}, {name: gone, args: {n: 1}}]
      - text: "PRIVATE-ANSWER"
`

// Planted secrets are in no log line, no span (with content), no metric, no error and in
// no table; what was said is in none of the first three.
func TestSecretsAndContentStayWhereTheyBelong(t *testing.T) {
	t.Parallel()
	const key, token, signing = "sk-CANARY-provider-key-0123456789", "CANARY-tool-token-0123456789", "whsec_Q0FOQVJZLXNpZ25pbmcta2V5LTAxMjM0NTY3ODk="
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error": {"message": "Incorrect API key provided: %s", "code": "invalid_api_key"}}`, r.Header.Get("Authorization"))
	}))
	t.Cleanup(provider.Close)
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refuse" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprintf(w, `{"you sent": %q, "PRIVATE-RESULT": %q}`, r.Header.Get("X-Token"), r.URL.String())
	}))
	t.Cleanup(tools.Close)
	tool := func(name, url string) *loopdv1.Tool {
		return &loopdv1.Tool{Name: name, Effect: readOnly, Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{
			Method: "POST", Url: url + "/" + name, Headers: map[string]string{"X-Token": "${secret:SHOP}"}, SigningSecret: "SIGN",
		}}}
	}
	db, c := pgURL(t), newTraces(t)
	p := startIn(t, []string{
		captureVariable + "=SPAN_AND_EVENT", "LOOPD_OPENAI_API_KEY=" + key, "LOOPD_SECRET_SHOP=" + token, "LOOPD_SECRET_SIGN=" + signing,
	}, db, careless, "--otlp-endpoint", c.addr, "--openai-base-url", provider.URL+"/v1", "--log-level", "debug")
	p.define("careless", &loopdv1.AgentSpec{Instructions: "PRIVATE-INSTRUCTIONS", Tools: []*loopdv1.Tool{
		tool("echo", tools.URL), tool("refuse", tools.URL), tool("gone", "http://127.0.0.1:1"),
	}})
	if _, err := p.agents.UpdateAgent(p.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{
		Name: "agents/refused", Spec: &loopdv1.AgentSpec{Model: "openai/gpt-4o-mini"},
	}}); err != nil {
		t.Fatal(err)
	}
	run, refused := p.start("careless").GetName(), p.start("refused").GetName()
	p.ended(run, succeeded)
	p.ended(refused, loopdv1.RunState_RUN_STATE_FAILED)
	_, noRun := p.rest(http.MethodGet, "/v1/runs/no-run", "")
	metrics := fmt.Sprint(scrape(t, "http://"+p.admin+"/metrics"))
	var answers []any
	for _, path := range []string{run, refused, run + "/events", refused + "/events", run + "/toolCalls", run + "/messages"} {
		_, answer := p.rest(http.MethodGet, "/v1/"+path, "")
		answers = append(answers, answer)
	}
	p.terminate()

	spans := fmt.Sprint(c.of(run), c.of(refused))
	places := map[string]string{"the log": p.out.String(), "a span": spans, "a metric": metrics, "an answer": fmt.Sprint(answers, noRun), "the database": dump(t, db)}
	for place, text := range places {
		if len(text) < 100 {
			t.Errorf("%s was not looked at: %q", place, text)
		}
		for name, secret := range map[string]string{"the provider's key": key, "the tool's token": token, "the signing key": signing, "its body": strings.TrimPrefix(signing, "whsec_")} {
			if strings.Contains(text, secret) {
				t.Errorf("%s is in %s", name, place)
			}
		}
	}
	for _, place := range []string{"the log", "a metric"} {
		if i := strings.Index(places[place], "PRIVATE-"); i >= 0 {
			t.Errorf("content is in %s: %.200q", place, places[place][i:])
		}
	}
	if !strings.Contains(places["the database"], "PRIVATE-ANSWER") || !strings.Contains(spans, "PRIVATE-RESULT") {
		t.Error("the content is nowhere, so that nothing was looked for")
	}
}

// dump is every row of every table, as text.
func dump(t *testing.T, db string) string {
	t.Helper()
	pool := connect(t, db)
	var tables []string
	if err := pool.QueryRow(t.Context(), `SELECT array_agg(quote_ident(tablename) ORDER BY tablename) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, table := range tables {
		var rows string
		if err := pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(t::text, E'\n'), '') FROM "+table+" t").Scan(&rows); err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		all.WriteString(rows)
	}
	return all.String()
}
