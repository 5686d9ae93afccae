package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

// demoArgs is the command line of the demo on a database, on ports of its own.
func demoArgs(database string, more ...string) []string {
	return append([]string{
		"dev", "--demo", "--database-url", database, "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
	}, more...)
}

// The demo ends as it says, also on a database that has seen it before.
func TestDemo(t *testing.T) {
	t.Parallel()
	database := pgURL(t)
	for _, start := range []string{"first", "second"} {
		var out, progress bytes.Buffer
		env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &progress, Stdin: strings.NewReader("")}
		if code := run(t.Context(), demoArgs(database, "--once"), env); code != exitOK {
			t.Errorf("%s: exit code %d\n%s%s", start, code, &out, &progress)
		}
		for _, want := range []string{
			"REPEAT_CALL", "ITERATION_CAP", "COST_BUDGET", "COMPLETED", `check_inventory {"sku":"SKU-1234"}`, "loopd run show runs/",
			"together", "this run itself", "such runs a day: $",
			"a call waits for a person", `"amount": 180.00,`, "policies/small-refunds@1", "unauthenticated", "the demo's person has read it",
			"Side effects", "exactly 2 of 2 refunds happened", "ORD-4892  19.90 EUR  key loopd:",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: the demo does not say %q:\n%s", start, want, &out)
			}
		}
		// Some 56,000 tokens in ten calls, most of them from the cache, as in the article.
		children := regexp.MustCompile(`(?m)^  runs/\S+ +agents/researcher +10 +5[4-7]\d{3} +4[5-7]\d{3} +0\.06\d* +0\.1[78]\d*$`)
		if rows := children.FindAllString(out.String(), -1); len(rows) != 4 {
			t.Errorf("%s: the demo shows %d researchers as they should be, want 4:\n%s", start, len(rows), &out)
		}
	}
}

// Without --once the large refund waits for whoever looks at the demo.
func TestDemoLeavesARefundToSomebody(t *testing.T) {
	t.Parallel()
	out := &syncBuffer{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan int, 1)
	env := Env{Getenv: func(string) string { return "" }, Stdout: out, Stderr: out, Stdin: strings.NewReader("")}
	args := demoArgs(pgURL(t))
	go func() { ended <- run(ctx, args, env) }()
	await(ctx, t, out, "serving on")
	listens := regexp.MustCompile(`gRPC +(\S+)`).FindStringSubmatch(out.String())
	if listens == nil {
		t.Fatalf("the demo does not say where it listens:\n%s", out)
	}
	addr := listens[1]

	said := regexp.MustCompile(`→ loopd approval approve (\S+)\.c2-1`).FindStringSubmatch(out.String())
	if said == nil || !strings.Contains(out.String(), "exactly 1 of 2 refunds happened") {
		t.Fatalf("the demo does not say what waits:\n%s", out)
	}
	var shown bytes.Buffer
	person := Env{Getenv: env.Getenv, Stdout: &shown, Stderr: &shown, Stdin: strings.NewReader("y\n")}
	if code := run(ctx, []string{"approval", "approve", said[1] + ".c2-1", "--server", addr}, person); code != exitOK {
		t.Fatalf("approve: exit code %d\n%s", code, &shown)
	}
	if code := run(ctx, []string{"run", "watch", said[1], "--server", addr}, person); code != exitOK {
		t.Errorf("the run ended with %d\n%s", code, &shown)
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("the demo ended with %d\n%s", code, out)
	}
}

// await waits until the output has the text.
func await(ctx context.Context, t *testing.T, out *syncBuffer, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(out.String(), text) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it never says %q:\n%s", text, out)
		}
	}
}

// TestToolCallReachesTheTool: the server sends the call itself, with the key that it
// tells, and nothing of a tool that only a run may call.
func TestToolCallReachesTheTool(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 8)
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Idempotency-Key")
		_, _ = w.Write([]byte(`{"data": {"stock": 7}}`))
	}))
	t.Cleanup(shop.Close)
	p := start(t, pgURL(t), "models: {x: {answers: [{text: hi}]}}")
	loopd := func(stdin string, args ...string) (int, string) {
		var out bytes.Buffer
		env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &out, Stdin: strings.NewReader(stdin)}
		code := run(p.context, append(args, "--server", p.grpc), env)
		return code, out.String()
	}
	for name, effect := range map[string]string{"stock": "EFFECT_READ_ONLY", "pay": "EFFECT_UNSPECIFIED"} {
		spec := "name: " + name + "\nspec: {name: " + name + ", effect: " + effect + ", http: {method: POST, url: \"" + shop.URL + "\", result: /data}, " +
			"input_schema: {type: object, required: [sku]}}"
		if code, said := loopd(spec, "tool", "apply", "-f", "-"); code != exitOK {
			t.Fatalf("apply: exit code %d: %s", code, said)
		}
	}

	code, said := loopd("", "tool", "call", "stock", "--args", `{"sku": "SKU-1"}`)
	if code != exitOK || !strings.Contains(said, `"stock": 7`) || strings.Contains(said, "data") {
		t.Errorf("call: exit code %d: %s", code, said)
	}
	if key := <-keys; !strings.HasPrefix(key, "loopd:tool-test-") || !strings.Contains(said, key) {
		t.Errorf("the tool got the key %q, and the command said %s", key, said)
	}
	if code, said := loopd("", "tool", "call", "stock"); code != exitUsage || !strings.Contains(said, "sku") {
		t.Errorf("call without arguments: exit code %d: %s", code, said)
	}
	if code, said := loopd("", "tool", "call", "pay", "--args", `{"sku": "SKU-1"}`); code != exitConflict || !strings.Contains(said, "TOOL_NOT_CALLABLE") {
		t.Errorf("call of an irreversible tool: exit code %d: %s", code, said)
	}
	if len(keys) > 0 {
		t.Errorf("the tool was called %d times more than it should", len(keys))
	}
}
