package tool

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/loopd/loopd/internal/loop"
)

const (
	readOnly     = loop.ReadOnly
	idempotent   = loop.Idempotent
	sideEffect   = loop.SideEffect
	irreversible = loop.Irreversible
)

func localRunner() *Runner {
	return New(Config{AllowPrivate: true, Secrets: func(name string) (string, bool) {
		return `k"ey-5ecret`, name == "KEY"
	}})
}

// request is a send of a call of an effect to a URL.
func request(effect loop.Effect, method, url, args string) Request {
	return Request{
		Run: loop.RunRef{Tenant: "acme", ID: "run1"}, Key: "loopd:run1:c1-1", Attempt: 2,
		Call: loop.ToolCall{ID: "c1-1", Name: "act", Args: args},
		Spec: loop.ToolSpec{Name: "act", Effect: effect, Timeout: 10 * time.Second, HTTP: &loop.HTTPSpec{Method: method, URL: url}},
	}
}

// serve answers with handler and counts the requests that reached it.
func serve(t *testing.T, handler http.HandlerFunc) (url string, deliveries func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// answer is a handler that always says the same.
func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// resetting is a server that reads each request to its end. It answers the
// first `answers` of them and closes the connection without a byte on the rest.
type resetting struct {
	URL string

	mu   sync.Mutex
	keys []string // of the requests that arrived in full
}

func newResetting(t *testing.T, answers int) *resetting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &resetting{URL: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.conn(c, answers) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return s
}

func (s *resetting) conn(c net.Conn, answers int) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			return
		}
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		n := len(s.keys)
		s.mu.Unlock()
		if n > answers {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

func (s *resetting) deliveries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

// told decodes the message that a failed call gives the model.
func told(t *testing.T, reply loop.ToolReply) problem {
	t.Helper()
	var content struct {
		Error problem `json:"error"`
	}
	if err := json.Unmarshal([]byte(reply.Content), &content); err != nil {
		t.Fatalf("content %q: %v", reply.Content, err)
	}
	return content.Error
}

// names is a name server for tests: the n-th time that a name is asked for, it
// has the n-th of its addresses, and the last one from then on.
type names struct {
	*net.Resolver

	mu    sync.Mutex
	asked map[string]int
}

func newNames(t *testing.T, addresses map[string][]string) *names {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &names{asked: map[string]int{}}
	n.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := n.answer(buf[:size], addresses); reply != nil {
				_, _ = c.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return n
}

func (n *names) answer(query []byte, addresses map[string][]string) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	known := addresses[name]
	if len(known) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	} else if q.Type == dnsmessage.TypeA {
		n.mu.Lock()
		at := netip.MustParseAddr(known[min(n.asked[name], len(known)-1)])
		n.asked[name]++
		n.mu.Unlock()
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.AResource{A: at.As4()},
		}}
	}
	reply, _ := m.Pack()
	return reply
}

func (n *names) lookups(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name]
}
