package tool

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/loopd/loopd/internal/loop"
)

// delivery is one request that reached a server, or the beginning of one.
type delivery struct{ proto, key string }

// ledger is what a server wrote down before it did anything else.
type ledger struct {
	mu      sync.Mutex
	entries []delivery
}

// write notes a delivery and returns how many there are.
func (l *ledger) write(proto, key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, delivery{proto, key})
	return len(l.entries)
}

func (l *ledger) read() []delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]delivery(nil), l.entries...)
}

// certified returns a certificate for 127.0.0.1, and the pool that trusts it.
func certified(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s.TLS.Certificates[0], pool
}

// listen serves each connection with handle until the test ends.
func listen(t *testing.T, handle func(c *net.TCPConn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	over := t.Context() // ends before clean-up begins
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			context.AfterFunc(over, func() { _ = c.SetDeadline(time.Now()) })
			wg.Go(func() { defer c.Close(); handle(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// trusting lets a runner's clients trust a pool.
func trusting(r *Runner, pool *x509.CertPool) *Runner {
	for _, c := range []*http.Client{r.single, r.repeatable} {
		c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return r
}

// phases are the places where a connection may break, in order, and what a server
// reads and writes before it does.
var phases = []struct {
	name   string
	lines  int // of the head that are read; -1: all
	body   int // bytes of the body that are read; -1: all
	answer string
}{
	{"before the first byte is read", 0, 0, ""},
	{"after the request line", 1, 0, ""},
	{"in the headers", 3, 0, ""},
	{"before the body", -1, 0, ""},
	{"in the body", -1, 100, ""},
	{"after the request", -1, -1, ""},
	{"in the status line", -1, -1, "HTTP/1.1 20"},
	{"in the headers of the answer", -1, -1, "HTTP/1.1 200 OK\r\nContent-Le"},
	{"before the body of the answer", -1, -1, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"},
	{"in the body of the answer", -1, -1, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\""},
	{"in a chunk", -1, -1, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"a\""},
	{"after an interim answer", -1, -1, "HTTP/1.1 103 Early Hints\r\n\r\n"},
	{"with HTTP/2 instead of an answer", -1, -1, "\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
}

// The connection breaks in every phase of a request, by a reset and by an orderly
// end, on the first request of a runner and after one that was answered on a
// connection which the server keeps open, in the clear and in TLS: one delivery
// at most, and the truth about it.
func TestAtMostOneDeliveryInEveryPhase(t *testing.T) {
	t.Parallel()
	cert, pool := certified(t)
	for i, phase := range phases {
		for _, encrypted := range []bool{false, true} {
			for _, reset := range []bool{false, true} {
				for _, warm := range []int{0, 2} {
					t.Run(fmt.Sprintf("%s/tls=%v/reset=%v/after=%d", phase.name, encrypted, reset, warm), func(t *testing.T) {
						t.Parallel()
						effect := []loop.Effect{sideEffect, irreversible}[i%2]
						var book ledger
						at := "http://" + listen(t, func(c *net.TCPConn) {
							var rw io.ReadWriter = c
							if encrypted {
								rw = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
							}
							in := bufio.NewReader(rw)
							for answered := 0; ; answered++ {
								if len(book.read()) < warm { // answer in full, and keep the connection
									r, err := http.ReadRequest(in)
									if err != nil {
										return
									}
									_, _ = io.Copy(io.Discard, r.Body)
									book.write(r.Proto, r.Header.Get("Idempotency-Key"))
									_, _ = io.WriteString(rw, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
									continue
								}
								if _, err := in.Peek(1); err != nil {
									return
								}
								book.write("HTTP/1.1", "cut")
								length := 0
								for n := 0; n != phase.lines; n++ {
									line, err := in.ReadString('\n')
									if err != nil || line == "\r\n" {
										break
									}
									_, _ = fmt.Sscanf(strings.ToLower(line), "content-length: %d", &length)
								}
								if phase.body >= 0 {
									length = phase.body
								}
								_, _ = io.CopyN(io.Discard, in, int64(length))
								_, _ = io.WriteString(rw, phase.answer)
								if reset {
									_ = c.SetLinger(0)
								}
								return
							}
						})
						r := localRunner()
						if encrypted {
							r, at = trusting(r, pool), strings.Replace(at, "http:", "https:", 1)
						}
						args := `{"a":"` + strings.Repeat("x", 4<<10) + `"}`
						for range warm {
							if reply := r.Call(t.Context(), request(effect, "POST", at, args)); reply.Outcome != loop.OutcomeOK {
								t.Fatalf("warm-up: %+v", reply)
							}
						}
						reply := r.Call(t.Context(), request(effect, "POST", at, args))
						if reply.Outcome != loop.OutcomeUnknown || told(t, reply).Kind != "outcome_unknown" {
							t.Errorf("%+v, want the outcome unknown", reply)
						}
						if entries := book.read(); len(entries) != warm+1 {
							t.Errorf("%d calls made %d deliveries: %v", warm+1, len(entries), entries)
						}
					})
				}
			}
		}
	}
}

// A handshake that breaks is before the request: nothing was sent, for any class.
func TestBrokenHandshakeIsNotSent(t *testing.T) {
	t.Parallel()
	for _, effect := range []loop.Effect{readOnly, irreversible} {
		at := "https://" + listen(t, func(c *net.TCPConn) {
			_, _ = io.CopyN(io.Discard, c, 50) // of the hello
			_ = c.SetLinger(0)
		})
		if reply := localRunner().Call(t.Context(), request(effect, "POST", at, `{}`)); reply.Outcome != loop.OutcomeNotSent {
			t.Errorf("%s: %+v", effect, reply)
		}
	}
}

// h2server speaks HTTP/2 as far as a test needs it. The first request meets
// refuse, all others are answered.
type h2server struct {
	ledger

	refuse func(f *http2.Framer, stream uint32)
}

func (s *h2server) serve(c net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			key := ""
			for _, h := range frame.RegularFields() {
				if h.Name == "idempotency-key" {
					key = h.Value
				}
			}
			if s.write("HTTP/2.0", key) == 1 {
				s.refuse(f, frame.StreamID)
				continue
			}
			var block bytes.Buffer
			_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}
	}
}

// refusals are the ways in which an HTTP/2 server says that a request may be sent again.
var refusals = map[string]func(f *http2.Framer, stream uint32){
	"REFUSED_STREAM": func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, http2.ErrCodeRefusedStream) },
	"GOAWAY":         func(f *http2.Framer, _ uint32) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) },
}

// HTTP/2 repeats a request that a server refuses, inside net/http: two deliveries
// with one key, and no error. Repeatable calls may have that. Others never speak
// it, also with servers that prefer it; those that speak nothing else do not take
// the call.
func TestHTTP2RepeatsOnlyRepeatableCalls(t *testing.T) {
	t.Parallel()
	cert, pool := certified(t)
	for name, refuse := range refusals {
		for _, offered := range [][]string{{"h2", "http/1.1"}, {"h2"}} {
			for _, effect := range []loop.Effect{readOnly, idempotent, sideEffect, irreversible} {
				t.Run(fmt.Sprintf("%s/%v/%s", name, offered, effect), func(t *testing.T) {
					t.Parallel()
					s := &h2server{refuse: refuse}
					at := "https://" + listen(t, func(c *net.TCPConn) {
						tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: offered})
						if tc.Handshake() != nil {
							return
						}
						if tc.ConnectionState().NegotiatedProtocol == "h2" || len(offered) == 1 {
							s.serve(tc)
							return
						}
						r, err := http.ReadRequest(bufio.NewReader(tc))
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						s.write(r.Proto, r.Header.Get("Idempotency-Key"))
						_, _ = io.WriteString(tc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
					})
					r := trusting(localRunner(), pool)
					t.Cleanup(r.repeatable.CloseIdleConnections)
					reply := r.Call(t.Context(), request(effect, "POST", at, `{"a":1}`))
					const key = "loopd:run1:c1-1"
					outcome, want := loop.OutcomeOK, []delivery{{"HTTP/2.0", key}, {"HTTP/2.0", key}}
					if !effect.Repeatable() {
						want = []delivery{{"HTTP/1.1", key}}
						if len(offered) == 1 {
							outcome, want = loop.OutcomeUnknown, nil // it hung up on what it does not understand
						}
					}
					if got := s.read(); fmt.Sprint(got) != fmt.Sprint(want) || reply.Outcome != outcome {
						t.Errorf("%s with deliveries %v, want %s with %v: %s", reply.Outcome, got, outcome, want, reply.Content)
					}
				})
			}
		}
	}
}

// A stream that is reset for another reason may have been acted on: a repeatable
// call is told so, and not repeated behind its back.
func TestHTTP2ResetOfARepeatableCall(t *testing.T) {
	t.Parallel()
	cert, pool := certified(t)
	s := &h2server{refuse: func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, http2.ErrCodeInternal) }}
	at := "https://" + listen(t, func(c *net.TCPConn) {
		s.serve(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}))
	})
	r := trusting(localRunner(), pool)
	t.Cleanup(r.repeatable.CloseIdleConnections)
	if reply := r.Call(t.Context(), request(idempotent, "POST", at, `{}`)); reply.Outcome != loop.OutcomeRetryable || len(s.read()) != 1 {
		t.Errorf("%+v, deliveries %v", reply, s.read())
	}
}
