// Package providertest holds the conformance suite that every provider adapter
// passes: recorded exchanges through a real HTTP server, the same exchanges cut
// at many places, and everything a server can do wrong. A new adapter adds its
// recordings and a table of what they mean.
package providertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Exchange is one recorded request and answer. Recordings keep their members on
// origin and licence.
type Exchange struct {
	ID         string `json:"id"`
	Scenario   string `json:"scenario"`
	Provenance struct {
		Repository string `json:"repository"`
		Licence    string `json:"licence"`
	} `json:"provenance"`
	Request struct {
		Body json.RawMessage `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		SSE     string            `json:"sse"`
		Text    string            `json:"text"`
	} `json:"response"`
}

// Load reads a recording.
func Load(t *testing.T, recordings fs.FS, name string) Exchange {
	t.Helper()
	raw, err := fs.ReadFile(recordings, name)
	if err != nil {
		t.Fatalf("read recording: %v", err)
	}
	var x Exchange
	if err := json.Unmarshal(raw, &x); err != nil {
		t.Fatalf("recording %s: %v", name, err)
	}
	if x.Provenance.Licence == "" {
		t.Errorf("recording %s names no licence", name)
	}
	return x
}

// Text is the body of the recorded answer.
func (x Exchange) Text() string {
	switch {
	case x.Response.SSE != "":
		return x.Response.SSE
	case len(x.Response.Body) > 0:
		// The files are indented; servers are not.
		var b bytes.Buffer
		if json.Compact(&b, x.Response.Body) == nil {
			return b.String()
		}
	}
	return x.Response.Text
}

// header is what of the recorded headers an adapter may care for.
func (x Exchange) header() http.Header {
	h := http.Header{}
	for name, value := range x.Response.Headers {
		name = http.CanonicalHeaderKey(name)
		switch name {
		case "Content-Type", "Retry-After", "Retry-After-Ms", "X-Should-Retry":
			h.Set(name, value)
		}
		if strings.HasPrefix(name, "X-Ratelimit-") || strings.HasPrefix(name, "Anthropic-Ratelimit-") {
			h.Set(name, value)
		}
	}
	return h
}

// ServeHTTP replays the answer.
func (x Exchange) ServeHTTP(w http.ResponseWriter, _ *http.Request) { x.serve(w, len(x.Text())) }

// serve replays the answer in pieces of size bytes.
func (x Exchange) serve(w http.ResponseWriter, size int) {
	maps.Copy(w.Header(), x.header())
	w.WriteHeader(x.Response.Status)
	for text := x.Text(); text != ""; {
		n := min(max(size, 1), len(text))
		write(w, text[:n])
		text = text[n:]
	}
}

// Server is a provider that does as its handler says and remembers what it was sent.
type Server struct {
	URL string

	mu       sync.Mutex
	requests []Request
}

// Request is one request as it arrived.
type Request struct {
	Path   string
	Query  string
	Header http.Header
	Body   []byte
}

// Serve starts a server that stops with the test.
func Serve(t *testing.T, handler http.Handler) *Server {
	t.Helper()
	s := &Server{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("server: read request: %v", err)
		}
		s.mu.Lock()
		s.requests = append(s.requests, Request{Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone(), Body: body})
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// Requests returns what has arrived so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Last returns the newest request.
func (s *Server) Last(t *testing.T) Request {
	t.Helper()
	all := s.Requests()
	if len(all) == 0 {
		t.Fatal("no request has arrived")
	}
	return all[len(all)-1]
}

// write sends text at once. A client that has gone is the test's doing.
func write(w http.ResponseWriter, text string) {
	_, _ = fmt.Fprint(w, text)
	_ = http.NewResponseController(w).Flush()
}
