package tool

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/loop"
)

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	const args = `{"id":"a/b c","deep":{"b": 1},"list":[1,2],"n":1.50,"on":true,"gone":null,"text":"x&y"}`
	type wire struct{ Method, URI, Body, Type string }
	for want, method := range map[wire]string{
		{"GET", "/o/a%2Fb%20c?deep=%7B%22b%22%3A+1%7D&full=1&list=1&list=2&n=1.50&on=true&text=x%26y", "", ""}:    "GET",
		{"DELETE", "/o/a%2Fb%20c?deep=%7B%22b%22%3A+1%7D&full=1&list=1&list=2&n=1.50&on=true&text=x%26y", "", ""}: "DELETE",
		{"POST", "/o/a%2Fb%20c?full=1", args, "application/json"}:                                                 "POST",
		{"PUT", "/o/a%2Fb%20c?full=1", args, "application/json"}:                                                  "PUT",
		{"PATCH", "/o/a%2Fb%20c?full=1", args, "application/json"}:                                                "PATCH",
	} {
		for _, effect := range []loop.Effect{readOnly, sideEffect} {
			var got wire
			var header http.Header
			url, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got, header = wire{r.Method, r.RequestURI, string(body), r.Header.Get("Content-Type")}, r.Header
			})
			req := request(effect, method, url+"/o/{id}?full=1", args)
			req.Spec.HTTP.Headers = map[string]string{"X-Api-Key": "key=${secret:KEY}"}
			ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
			if reply := localRunner().Call(ctx, req); reply.Outcome != loop.OutcomeOK || reply.Duration <= 0 {
				t.Fatalf("%s: %+v", method, reply)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", effect, method, diff)
			}
			for name, value := range map[string]string{
				"X-Api-Key": `key=k"ey-5ecret`, "Idempotency-Key": "loopd:run1:c1-1", "Loopd-Run-Id": "run1", "Loopd-Call-Id": "c1-1",
				"Loopd-Attempt": "2", "Traceparent": "00-01000000000000000000000000000000-0200000000000000-00", "User-Agent": "loopd",
			} {
				if header.Get(name) != value {
					t.Errorf("header %s = %q, want %q", name, header.Get(name), value)
				}
			}
		}
	}
}

func TestEmptyArgumentsAreAnEmptyObject(t *testing.T) {
	t.Parallel()
	var got []byte
	url, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { got, _ = io.ReadAll(r.Body) })
	localRunner().Call(t.Context(), request(sideEffect, "POST", url, ""))
	if string(got) != "{}" {
		t.Errorf("body %q", got)
	}
}

// Nothing leaves loopd for a call that cannot be put into a request.
func TestUnsendable(t *testing.T) {
	t.Parallel()
	url, deliveries := serve(t, answer(200, "ok"))
	for name, test := range map[string]struct {
		args, path string
		headers    map[string]string
		outcome    loop.Outcome
		want       string
	}{
		"no object":      {`[1]`, "/", nil, loop.OutcomeInvalidArgs, "expected a JSON object"},
		"not given":      {`{}`, "/{id}", nil, loop.OutcomeInvalidArgs, "arguments.id: required, but missing"},
		"object":         {`{"id":{}}`, "/{id}", nil, loop.OutcomeInvalidArgs, "arguments.id: expected a string, number or boolean"},
		"parent":         {`{"id":".."}`, "/{id}", nil, loop.OutcomeInvalidArgs, `arguments.id: ".." cannot be part`},
		"empty":          {`{"id":""}`, "/{id}", nil, loop.OutcomeInvalidArgs, `arguments.id: "" cannot be part`},
		"secret not set": {`{}`, "/", map[string]string{"A": "${secret:OTHER}"}, loop.OutcomePermanent, `secret "OTHER" is not set`},
	} {
		for _, effect := range []loop.Effect{readOnly, irreversible} {
			req := request(effect, "POST", url+test.path, test.args)
			req.Spec.HTTP.Headers = test.headers
			reply := localRunner().Call(t.Context(), req)
			if reply.Outcome != test.outcome || !strings.Contains(told(t, reply).Message, test.want) {
				t.Errorf("%s: %+v, want %s with %q", name, reply, test.outcome, test.want)
			}
		}
	}
	if deliveries() != 0 {
		t.Errorf("%d deliveries", deliveries())
	}
	req := request(readOnly, "GET", url, "")
	req.Spec.HTTP = nil
	if reply := localRunner().Call(t.Context(), req); reply.Outcome != loop.OutcomePermanent || !strings.Contains(reply.Content, "no http section") {
		t.Errorf("no http: %+v", reply)
	}
}

// What each complete answer means, by effect class.
func TestStatusDecidesOutcome(t *testing.T) {
	t.Parallel()
	const ok, retry, perm, unknown = loop.OutcomeOK, loop.OutcomeRetryable, loop.OutcomePermanent, loop.OutcomeUnknown
	for status, want := range map[int][4]loop.Outcome{
		// READ_ONLY, IDEMPOTENT, SIDE_EFFECT, IRREVERSIBLE
		200: {ok, ok, ok, ok},
		201: {ok, ok, ok, ok},
		204: {ok, ok, ok, ok},
		304: {perm, perm, unknown, unknown},
		400: {perm, perm, perm, perm},
		401: {perm, perm, perm, perm},
		404: {perm, perm, perm, perm},
		408: {retry, retry, unknown, unknown},
		409: {perm, retry, unknown, unknown},
		422: {perm, perm, perm, perm},
		425: {retry, retry, unknown, unknown},
		429: {retry, retry, retry, retry},
		500: {perm, perm, unknown, unknown},
		501: {perm, perm, unknown, unknown},
		502: {retry, retry, unknown, unknown},
		503: {retry, retry, unknown, unknown},
		504: {retry, retry, unknown, unknown},
	} {
		url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		for i, effect := range []loop.Effect{readOnly, idempotent, sideEffect, irreversible} {
			reply := localRunner().Call(t.Context(), request(effect, "POST", url, `{}`))
			if reply.Outcome != want[i] || reply.Status != status {
				t.Errorf("%d for %s: %+v, want %s", status, effect, reply, want[i])
			}
			if reply.Outcome != ok && (told(t, reply).Status != status || told(t, reply).Message == "") {
				t.Errorf("%d for %s: the model is told %s", status, effect, reply.Content)
			}
		}
	}
}

func TestErrorTellsTheModel(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		answer(429, "slow <down> "+strings.Repeat("é", 3000))(w, nil)
	})
	reply := localRunner().Call(t.Context(), request(sideEffect, "POST", url, `{}`))
	got := told(t, reply)
	seven := int64(7)
	want := problem{Kind: "rate_limited", Status: 429, Message: "The tool answered 429 Too Many Requests. It may succeed later. Retry after 7 s.", RetryAfter: &seven, Body: "slow <down> " + strings.Repeat("é", 1018) + "…"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if strings.Contains(reply.Content, `\u003c`) {
		t.Error("HTML characters are escaped, which costs tokens and helps nobody")
	}
}

// A wait is passed on where it helps, and within bounds.
func TestRetryAfterIsTold(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]int64{"7": 7, "0": 0, "99999999999": longestRetryAfter} {
		for status, effects := range map[int][]loop.Effect{429: {readOnly, irreversible}, 503: {readOnly, idempotent}} {
			for _, effect := range effects {
				url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", header)
					w.WriteHeader(status)
				})
				got := told(t, localRunner().Call(t.Context(), request(effect, "POST", url, `{}`)))
				if got.RetryAfter == nil || *got.RetryAfter != want || !strings.HasSuffix(got.Message, fmt.Sprintf(" Retry after %d s.", want)) {
					t.Errorf("%d for %s: %+v", status, effect, got)
				}
			}
		}
	}
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	if got := told(t, localRunner().Call(t.Context(), request(irreversible, "POST", url, `{}`))); got.RetryAfter != nil || strings.Contains(got.Message, "Retry") {
		t.Errorf("a call in doubt: %+v", got)
	}
}

func TestRetryAfterAsDate(t *testing.T) {
	t.Parallel()
	h := http.Header{"Retry-After": {time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)}}
	if got := retryAfter(h); got == nil || *got < 85 || *got > 91 {
		t.Errorf("in 90 s: %v", got)
	}
	for _, bad := range []string{"", "soon", "-4"} {
		if got := retryAfter(http.Header{"Retry-After": {bad}}); got != nil {
			t.Errorf("%q: %d", bad, *got)
		}
	}
}

func TestNotSent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	_ = l.Close()
	plain, deliveries := serve(t, answer(200, "ok"))
	for name, url := range map[string]string{
		"refused":       closed,
		"no such name":  "http://loopd-test.invalid/",
		"TLS handshake": strings.Replace(plain, "http:", "https:", 1),
	} {
		for _, effect := range []loop.Effect{readOnly, irreversible} {
			reply := localRunner().Call(t.Context(), request(effect, "POST", url, `{}`))
			if reply.Outcome != loop.OutcomeNotSent || told(t, reply).Kind != "not_sent" {
				t.Errorf("%s for %s: %+v", name, effect, reply)
			}
		}
	}
	if deliveries() != 0 {
		t.Errorf("%d deliveries", deliveries())
	}
}

// hanging sends headers and part of a body, then nothing until the client goes.
func hanging(started chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body) // else the server does not notice that the client went
		_, _ = io.WriteString(w, "partial")
		_ = http.NewResponseController(w).Flush()
		if started != nil {
			started <- struct{}{}
		}
		<-r.Context().Done()
	}
}

func TestSlowBodyTimesOut(t *testing.T) {
	t.Parallel()
	for effect, want := range map[loop.Effect]loop.Outcome{readOnly: loop.OutcomeTimeout, idempotent: loop.OutcomeTimeout, sideEffect: loop.OutcomeUnknown, irreversible: loop.OutcomeUnknown} {
		url, _ := serve(t, hanging(nil))
		req := request(effect, "POST", url, `{}`)
		req.Spec.Timeout = 150 * time.Millisecond
		reply := localRunner().Call(t.Context(), req)
		if reply.Outcome != want || reply.Status != 200 || reply.Duration > 5*time.Second {
			t.Errorf("%s: %+v, want %s", effect, reply, want)
		}
		told(t, reply)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for effect, want := range map[loop.Effect]loop.Outcome{readOnly: loop.OutcomeCancelled, idempotent: loop.OutcomeCancelled, sideEffect: loop.OutcomeUnknown, irreversible: loop.OutcomeUnknown} {
		started := make(chan struct{}, 1)
		url, deliveries := serve(t, hanging(started))
		ctx, cancel := context.WithCancel(t.Context())
		var replied = make(chan loop.ToolReply)
		go func() { replied <- localRunner().Call(ctx, request(effect, "POST", url, `{}`)) }()
		<-started
		cancel()
		if reply := <-replied; reply.Outcome != want {
			t.Errorf("%s, sent: %+v, want %s", effect, reply, want)
		}
		if reply := localRunner().Call(ctx, request(effect, "POST", url, `{}`)); reply.Outcome != loop.OutcomeCancelled || deliveries() != 1 {
			t.Errorf("%s, cancelled before: %+v, %d deliveries", effect, reply, deliveries())
		}
	}
}

func TestIncompleteErrorAnswerIsNotDefinite(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "cut")
	})
	if reply := localRunner().Call(t.Context(), request(sideEffect, "POST", url, `{}`)); reply.Outcome != loop.OutcomeUnknown {
		t.Errorf("a cut 400 of a side effect: %+v", reply)
	}
}

func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	bomb := func() []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		for range 64 {
			_, _ = z.Write(bytes.Repeat([]byte("é"), 1<<19))
		}
		_ = z.Close()
		return b.Bytes()
	}()
	if len(bomb) > 200_000 {
		t.Fatalf("the bomb has %d bytes itself", len(bomb))
	}
	for name, handler := range map[string]http.HandlerFunc{
		"plain": answer(200, strings.Repeat("é", 5001)),
		"gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		},
	} {
		url, _ := serve(t, handler)
		r := New(Config{AllowPrivate: true, MaxReadBytes: 9999})
		for effect, want := range map[loop.Effect]loop.Outcome{readOnly: loop.OutcomeOK, idempotent: loop.OutcomeOK, sideEffect: loop.OutcomeUnknown, irreversible: loop.OutcomeUnknown} {
			reply := r.Call(t.Context(), request(effect, "POST", url, `{}`))
			if reply.Outcome != want || !reply.Cut || reply.Bytes < 10_000 || len(reply.Content) > 9999 || !utf8.ValidString(reply.Content) {
				t.Errorf("%s for %s: outcome %s, cut %v, %d bytes, content of %d", name, effect, reply.Outcome, reply.Cut, reply.Bytes, len(reply.Content))
			}
		}
		if reply := r.Call(t.Context(), request(readOnly, "GET", url, ``)); reply.Content != strings.Repeat("é", 4999) {
			t.Errorf("%s: content of %d bytes", name, len(reply.Content))
		}
	}
}

func TestBodiesBecomeValidText(t *testing.T) {
	t.Parallel()
	const mark = "[loopd: the answer is not plain UTF-8 text; each \uFFFD stands for bytes that are not]\n"
	for sent, want := range map[string]string{
		"naïve \u2028":      "naïve \u2028",
		"a\xff\xfeb":        mark + "a\uFFFDb",
		"a\x00b":            mark + "a\uFFFDb",
		`{"a":"\u0000"}`:    `{"a":"\u0000"}`,
		"ends in half \xc3": mark + "ends in half \uFFFD",
	} {
		url, _ := serve(t, answer(200, sent))
		reply := localRunner().Call(t.Context(), request(readOnly, "GET", url, ``))
		if reply.Content != want || reply.Bytes != int64(len(sent)) || reply.Cut {
			t.Errorf("%q: %+v", sent, reply)
		}
	}
}

// A tool that repeats its credentials does not show them to the model.
func TestSecretsNeitherInRepliesNorLogs(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 400, 500} {
		url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			answer(status, fmt.Sprintf(`{"sent":%q,"plain":`, r.Header.Get("Authorization"))+r.Header.Get("Authorization"))(w, r)
		})
		var logs bytes.Buffer
		r := localRunner()
		r.cfg.Log = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
		req := request(readOnly, "GET", url, `{"password":"hunter2"}`)
		req.Spec.HTTP.Headers = map[string]string{"Authorization": "Bearer ${secret:KEY}"}
		reply := r.Call(t.Context(), req)
		if all := reply.Content + logs.String(); strings.Contains(all, "5ecret") || strings.Count(reply.Content, "[secret:KEY]") != 2 {
			t.Errorf("%d: %s", status, all)
		}
		if logs.Len() == 0 || strings.Contains(logs.String(), "hunter2") {
			t.Errorf("log: %s", logs.String())
		}
	}
	// A secret that cannot be sent is not shown either.
	r := New(Config{AllowPrivate: true, Secrets: func(string) (string, bool) { return "5ecret\n", true }})
	req := request(readOnly, "GET", "http://127.0.0.1:1", ``)
	req.Spec.HTTP.Headers = map[string]string{"A": "${secret:KEY}"}
	if reply := r.Call(t.Context(), req); strings.Contains(reply.Content, "5ecret") || reply.Outcome != loop.OutcomePermanent {
		t.Errorf("%+v", reply)
	}
}

func TestPanicsAreContained(t *testing.T) {
	t.Parallel()
	r := New(Config{AllowPrivate: true, Secrets: func(string) (string, bool) { panic("vault") }})
	req := request(irreversible, "POST", "http://127.0.0.1:1", `{}`)
	req.Spec.HTTP.Headers = map[string]string{"A": "${secret:KEY}"}
	if reply := r.Call(t.Context(), req); reply.Outcome != loop.OutcomeNotSent {
		t.Errorf("panic before the send: %+v", reply)
	}
	r = New(Config{AllowPrivate: true})
	r.single.Transport = panicky{r.single.Transport}
	url, deliveries := serve(t, answer(200, "ok"))
	if reply := r.Call(t.Context(), request(irreversible, "POST", url, `{}`)); reply.Outcome != loop.OutcomeUnknown || deliveries() != 1 {
		t.Errorf("panic after the send: %+v", reply)
	}
}

// panicky breaks after the request was sent.
type panicky struct{ http.RoundTripper }

func (p panicky) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	panic("broken")
}

func TestRequestHeadersAreNotShared(t *testing.T) {
	t.Parallel()
	headers := map[string]string{"A": "${secret:KEY}"}
	before := maps.Clone(headers)
	url, _ := serve(t, answer(200, "ok"))
	req := request(readOnly, "GET", url, ``)
	req.Spec.HTTP.Headers = headers
	localRunner().Call(t.Context(), req)
	if diff := cmp.Diff(before, headers); diff != "" {
		t.Errorf("the spec was changed (-want +got):\n%s", diff)
	}
}
