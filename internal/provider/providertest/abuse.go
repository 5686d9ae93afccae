package providertest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// keys checks that a server which echoes the key does not get it into an error,
// and that the key travels in a header.
func (s Suite) keys(t *testing.T) {
	t.Run("in an error answer", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{
			`{"error":{"type":"` + Key + `","code":"` + Key + `","message":"Incorrect API key provided: ` + Key + `"}}`,
			"no such key: " + Key,
		} {
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				write(w, body)
			}))
			_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: loop.ErrorAuth})
			if r := server.Last(t); !carriesKey(r.Header) || strings.Contains(r.Query, Key) || strings.Contains(string(r.Body), Key) {
				t.Errorf("the key must be in a header and nowhere else: %v, query %q, body %s", r.Header, r.Query, r.Body)
			}
		}
	})
	t.Run("inside a stream", func(t *testing.T) {
		t.Parallel()
		name, ok := s.Traits[TraitStreamError]
		if !ok {
			t.Skipf("absent: %s", s.Absent[TraitStreamError])
		}
		x := Load(t, s.Recordings, name+".json")
		echo := strings.ReplaceAll(x.Response.SSE, `"message":"`, `"message":"`+Key+` `)
		echo = strings.ReplaceAll(echo, `"message": "`, `"message": "`+Key+` `)
		if !strings.Contains(echo, Key) {
			t.Fatalf("the error in %s has no message", name)
		}
		server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, echo) }))
		_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
		checkError(t, err, Want{Class: s.Want[name].Class})
	})
}

func carriesKey(h http.Header) bool {
	for _, values := range h {
		if strings.Contains(strings.Join(values, " "), Key) {
			return true
		}
	}
	return false
}

// resets breaks the TCP connection in every phase. After the request has been
// sent nobody knows what it cost, so none of this is free, and none is repeated
// here.
func (s Suite) resets(t *testing.T) {
	good := s.good(t).Response.SSE
	for _, c := range []struct {
		name  string
		sent  string // "" = not even headers
		class loop.ErrorClass
	}{
		{"before the headers", "", loop.ErrorServer},
		{"after the headers", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", loop.ErrorMidStream},
		{"inside the headers", "HTTP/1.1 200 OK\r\nContent-Ty", loop.ErrorServer},
		{"inside the answer", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + good[:len(good)/2], loop.ErrorMidStream},
		{"no HTTP", "220 mail.example.com ESMTP\r\n", loop.ErrorServer},
		{"endless headers", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("x", 2<<20), loop.ErrorServer},
		{"an error answer that breaks", "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 1000\r\n\r\n{\"err", loop.ErrorThrottle},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Errorf("hijack: %v", err)
					return
				}
				_, _ = conn.Write([]byte(c.sent)) // the client may have had enough
				reset(conn)
			}))
			_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
			// A reset can overtake what was sent before it.
			if e := modelError(t, err); e.Class != c.class && (e.Class != loop.ErrorServer || c.class == loop.ErrorThrottle) {
				t.Errorf("class %q, want %q (%v)", e.Class, c.class, err)
			}
			if n := len(server.Requests()); n != 1 {
				t.Errorf("%d requests arrived, want exactly 1", n)
			}
		})
	}
	t.Run("before the request was read", s.resetAtOnce)
}

// reset ends a connection by RST instead of FIN.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// resetting is a listener that resets every connection at once.
type resetting struct {
	net.Listener

	accepted *atomic.Int64
}

// Accept returns when the listener is closed.
func (l resetting) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.accepted.Add(1)
		reset(conn)
	}
}

func (s Suite) resetAtOnce(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int64
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Listener = resetting{server.Listener, &accepted}
	server.Start()
	t.Cleanup(server.Close)
	_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
	// The reset can come while the client still connects: then nothing has started.
	if e := modelError(t, err); e.Class != loop.ErrorServer && e.Class != loop.ErrorNotStarted {
		t.Errorf("class %q, want server or not_started (%v)", e.Class, err)
	}
	if n := accepted.Load(); n != 1 {
		t.Errorf("%d connections for one call", n)
	}
}

// trickles sends single bytes, each soon after the one before, and never a line.
func (s Suite) trickles(t *testing.T, begin string) {
	t.Parallel()
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(short / 5)
		defer tick.Stop()
		write(w, begin)
		for {
			select {
			case <-tick.C:
				write(w, "x")
			case <-r.Context().Done():
				return
			}
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.New(server.URL, Tuning{FirstByteTimeout: 4 * short, IdleTimeout: short}).Generate(ctx, Ask())
	checkError(t, err, Want{Class: loop.ErrorTimeout})
	if ctx.Err() != nil {
		t.Error("only the caller's deadline ended the call")
	}
}
