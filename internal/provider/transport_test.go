package provider_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// pipes is a network inside a synctest bubble: time passes only when everybody
// waits, so that the true bounds are tried and nobody waits for them.
type pipes struct{ conns chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { close(p.conns); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// virtual runs a call with default bounds against handler and returns what was
// read, how it ended and how long it took.
func virtual(t *testing.T, handler http.HandlerFunc, call func(provider.Transport) (string, error)) (text string, took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := pipes{make(chan net.Conn)}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice a client that left
			handler(w, r)
		})}
		done := make(chan error)
		go func() { done <- server.Serve(network) }()
		client := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			network.conns <- theirs
			return ours, nil
		}}
		start := time.Now()
		text, err = call(provider.Transport{Client: &http.Client{Transport: client}}.WithDefaults())
		took = time.Since(start)
		client.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Errorf("close server: %v", err)
		}
		<-done
	})
	return text, took, err
}

// readAll posts and reads the whole answer.
func readAll(tr provider.Transport) (string, error) {
	r, err := tr.Post(context.Background(), "http://provider/v1", http.Header{}, []byte("{}"))
	if err != nil {
		return "", err
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	return string(body), err
}

// say writes text at once, after a silence.
func say(w http.ResponseWriter, r *http.Request, after time.Duration, text string) {
	select {
	case <-time.After(after):
	case <-r.Context().Done():
	}
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

func classOf(err error) loop.ErrorClass {
	if e, ok := errors.AsType[*loop.ModelError](err); ok {
		return e.Class
	}
	return loop.ErrorClass(fmt.Sprintf("%T", err))
}

// TestSilence tries every bound at its default, in time that does not pass.
func TestSilence(t *testing.T) {
	t.Parallel()
	ask := func(effort string) func(provider.Transport) (string, error) {
		return func(tr provider.Transport) (string, error) {
			return readAll(tr.For(loop.ModelRequest{Reasoning: loop.Reasoning{Effort: effort}}))
		}
	}
	repeat := func(every time.Duration, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				say(w, r, every, text)
			}
		}
	}
	after := func(pauses ...time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			say(w, r, 0, "")
			for _, pause := range pauses {
				say(w, r, pause, "data: x\n\n")
			}
		}
	}
	headersAfter := func(wait time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { say(w, r, wait, "data: x\n\n") }
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		call    func(provider.Transport) (string, error)
		took    time.Duration
		class   loop.ErrorClass // "" = a whole answer
	}{
		{"no headers", headersAfter(2 * time.Hour), readAll, time.Minute, loop.ErrorTimeout},
		{"late headers", headersAfter(59 * time.Second), readAll, 59 * time.Second, ""},
		{"late headers of a model that was asked to think", headersAfter(4 * time.Minute), ask("high"), 4 * time.Minute, ""},
		{"late headers of a model that was asked not to", headersAfter(4 * time.Minute), ask("none"), time.Minute, loop.ErrorTimeout},
		{"headers are a sign of life", after(4*time.Minute, 29*time.Second), readAll, 4*time.Minute + 29*time.Second, ""},
		{"headers and no more", after(2 * time.Hour), readAll, 5 * time.Minute, loop.ErrorTimeout},
		{"silence between events", after(time.Second, 31*time.Second), readAll, 31 * time.Second, loop.ErrorTimeout},
		{"a byte every 10 s", repeat(10*time.Second, "x"), readAll, 40 * time.Second, loop.ErrorTimeout},
		{"a blank line every 10 s", repeat(10*time.Second, "\n"), readAll, 5*time.Minute + 10*time.Second, loop.ErrorTimeout},
		{"a comment every 10 s", repeat(10*time.Second, ": wait\n\n"), readAll, 5*time.Minute + 10*time.Second, loop.ErrorTimeout},
		{"an event every 10 s", repeat(10*time.Second, "data: x\n\n"), readAll, time.Hour, loop.ErrorTimeout},
		{"a long line in pieces", func(w http.ResponseWriter, r *http.Request) {
			for range 10 {
				say(w, r, 20*time.Second, strings.Repeat("x", 4096))
			}
		}, readAll, 200 * time.Second, ""},
		{"comments while the model thinks", func(w http.ResponseWriter, r *http.Request) {
			say(w, r, 0, "data: x\n\n")
			for range 12 {
				say(w, r, 20*time.Second, ": thinking\n\n")
			}
			say(w, r, 0, "data: x\n\n")
		}, readAll, 240 * time.Second, ""},
		{"an error whose text trickles", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			repeat(10*time.Second, "x\n")(w, r)
		}, readAll, 40 * time.Second, loop.ErrorAuth},
		{"a promise of output", func(w http.ResponseWriter, r *http.Request) {
			say(w, r, 0, "data: in_progress\n\n")
			say(w, r, 4*time.Minute, "data: x\n\n")
		}, func(tr provider.Transport) (string, error) {
			r, err := tr.Post(context.Background(), "http://provider/v1", http.Header{}, nil)
			if err != nil {
				return "", err
			}
			defer r.Close()
			if _, err := provider.NewEvents(r.Reader).Next(); err != nil {
				return "", err
			}
			r.Thinking()
			body, err := io.ReadAll(r)
			return string(body), err
		}, 4 * time.Minute, ""},
		{"a promise that was kept at once", func(w http.ResponseWriter, r *http.Request) {
			say(w, r, 0, "data: in_progress\n\ndata: x\n\n")
			say(w, r, 4*time.Minute, "data: x\n\n")
		}, func(tr provider.Transport) (string, error) {
			r, err := tr.Post(context.Background(), "http://provider/v1", http.Header{}, nil)
			if err != nil {
				return "", err
			}
			defer r.Close()
			events := provider.NewEvents(r.Reader)
			for err == nil {
				var data []byte
				if data, err = events.Next(); string(data) == "in_progress" {
					r.Thinking()
				}
			}
			return "", err
		}, 30 * time.Second, loop.ErrorTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, took, err := virtual(t, c.handler, c.call)
			if (err != nil || c.class != "") && classOf(err) != c.class {
				t.Errorf("ended with %v, want %q", err, c.class)
			}
			if took.Round(10*time.Second) != c.took.Round(10*time.Second) {
				t.Errorf("took %s, want %s", took, c.took)
			}
		})
	}
}

// against posts to a real server.
func against(t *testing.T, handler http.HandlerFunc, tr provider.Transport) (string, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	r, err := tr.WithDefaults().Post(t.Context(), server.URL, http.Header{}, []byte("{}"))
	if err != nil {
		return "", err
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	return string(body), err
}

func TestCompression(t *testing.T) {
	t.Parallel()
	zipped := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		text    string
		class   loop.ErrorClass
	}{
		{"gzip", func(w http.ResponseWriter, _ *http.Request) { zipped(w, "data: x\n\n") }, "data: x\n\n", ""},
		{"gzip, flushed by event", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 3 {
				_, _ = io.WriteString(z, "data: x\n\n")
				_ = z.Flush()
			}
			_ = z.Close()
		}, strings.Repeat("data: x\n\n", 3), ""},
		{"gzip of an error", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusTooManyRequests)
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, `{"error":{"code":"insufficient_quota"}}`)
			_ = z.Close()
		}, "", loop.ErrorQuota},
		{"a bomb", func(w http.ResponseWriter, _ *http.Request) { zipped(w, strings.Repeat("x", 2<<20)) }, "", loop.ErrorInternal},
		{"not gzip at all", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "data: hello there\n\n")
		}, "", loop.ErrorMidStream},
		{"brotli", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "br") }, "", loop.ErrorInternal},
		{"identity", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "identity")
			_, _ = io.WriteString(w, "data: x\n\n")
		}, "data: x\n\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text, err := against(t, c.handler, provider.Transport{MaxResponseBytes: 1 << 20})
			if err == nil && c.class == "" && text == c.text {
				return
			}
			if c.class == "" || classOf(err) != c.class {
				t.Errorf("got %.40q, %v; want %q, class %q", text, err, c.text, c.class)
			}
		})
	}
}

// TestHTTP2 ends connections as load balancers do.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	goOn := make(chan struct{})
	var handler http.HandlerFunc = func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("protocol is %s", r.Proto)
		}
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		started <- struct{}{}
		<-goOn
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "data: 2\n\n")
	}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	tr := provider.Transport{Client: server.Client()}.WithDefaults()

	read := func(path string, then func()) (string, error) {
		r, err := tr.Post(t.Context(), server.URL+path, http.Header{}, []byte("{}"))
		if err != nil {
			return "", err
		}
		defer r.Close()
		<-started
		then()
		goOn <- struct{}{}
		body, err := io.ReadAll(r)
		return string(body), err
	}
	if _, err := read("/reset", func() {}); classOf(err) != loop.ErrorMidStream {
		t.Errorf("a reset stream ends with %v", err)
	}
	if _, err := (provider.Transport{}).WithDefaults().Post(t.Context(), server.URL, http.Header{}, nil); classOf(err) != loop.ErrorNotStarted {
		t.Errorf("a certificate that nobody trusts: %v", err)
	}
	drained := make(chan error, 1)
	text, err := read("/goaway", func() {
		go func() { drained <- server.Config.Shutdown(context.Background()) }()
	})
	if err != nil || text != "data: 1\n\ndata: 2\n\n" {
		t.Errorf("after GOAWAY: got %q, %v", text, err)
	}
	if err := <-drained; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if _, err := tr.Post(t.Context(), server.URL, http.Header{}, nil); classOf(err) != loop.ErrorNotStarted {
		t.Errorf("a server that is gone: %v", err)
	}
}

func TestPostJSON(t *testing.T) {
	t.Parallel()
	const key = "sk-very-secret"
	for _, c := range []struct {
		name, body string
		status     int
		class      loop.ErrorClass
	}{
		{"good", `{"input_tokens":7}`, 200, ""},
		{"another type", `{"input_tokens":"` + key + `"}`, 200, loop.ErrorServer},
		{"no JSON", `hello`, 200, loop.ErrorServer},
		{"nothing", ``, 200, loop.ErrorServer},
		{"refused", `{"error":{"message":"` + key + ` is wrong"}}`, 401, loop.ErrorAuth},
		{"too large", `{"x":"` + strings.Repeat("x", 2000) + `"}`, 200, loop.ErrorInternal},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != `{"q":1}` || r.Header.Get("X-A") != "b" {
					t.Errorf("request is %s with %v (%v)", body, r.Header, err)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			t.Cleanup(server.Close)
			var into struct {
				Tokens int64 `json:"input_tokens"`
			}
			tr := provider.Transport{Key: key, MaxResponseBytes: 1000}.WithDefaults()
			err := tr.PostJSON(t.Context(), server.URL, http.Header{"X-A": {"b"}}, []byte(`{"q":1}`), &into)
			switch {
			case c.class == "" && (err != nil || into.Tokens != 7):
				t.Errorf("got %+v, %v", into, err)
			case c.class != "" && classOf(err) != c.class:
				t.Errorf("got %v, want %q", err, c.class)
			case err != nil && strings.Contains(err.Error(), key):
				t.Errorf("the key is in %v", err)
			}
		})
	}
}

// TestFail: what an error in the middle of an answer carries.
func TestFail(t *testing.T) {
	t.Parallel()
	const key = "sk-very-secret"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Limit-Tokens", "10")
		w.Header().Set("X-Ratelimit-Remaining-Tokens", "4")
		w.Header().Set("X-Ratelimit-Reset-Tokens", "1s")
	}))
	t.Cleanup(server.Close)
	r, err := provider.Transport{Key: key}.WithDefaults().Post(t.Context(), server.URL, http.Header{}, nil)
	if err != nil {
		t.Fatalf("Post: %v", err)
	}
	defer r.Close()
	fault := provider.ParseFault([]byte(`{"error":{"code":"c-` + key + `","message":"` + key + `"}}`))
	got, ok := errors.AsType[*loop.ModelError](r.Fail(fault.InBand(true), loop.Usage{Output: 3}))
	if !ok || got.Rate.Tokens.Remaining != 4 || got.Usage.Output != 3 || strings.Contains(got.Error(), key) {
		t.Errorf("error is %+v", got)
	}
	if e := r.Fail(io.ErrUnexpectedEOF, loop.Usage{}); classOf(e) != loop.ErrorMidStream {
		t.Errorf("error is %v", e)
	}
}

func TestProvidersAreToldWhereTheyAreInTheTrace(t *testing.T) {
	t.Parallel()
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Traceparent") }))
	t.Cleanup(server.Close)
	at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	answer, err := provider.Transport{}.WithDefaults().Post(trace.ContextWithSpanContext(t.Context(), at), server.URL, http.Header{}, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Close()
	if want := "00-01000000000000000000000000000000-0200000000000000-01"; got != want {
		t.Errorf("the provider was told %q, want %q", got, want)
	}
}
