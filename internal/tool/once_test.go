package tool

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// The fact that this package is built around: with the key that loopd must send,
// Go's own client sends a POST twice and reports no error of the first.
func TestDefaultClientSendsTwice(t *testing.T) {
	t.Parallel()
	s := newResetting(t, 1)
	client := &http.Client{Transport: &http.Transport{}}
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, bytes.NewReader([]byte(`{}`)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(r)
		if err != nil {
			continue
		}
		_, _ = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if n := s.deliveries(); n != 3 {
		t.Errorf("2 requests made %d deliveries; if Go stopped repeating requests, the doc of this package is out of date", n)
	}
}

// The connection dies after the request was read in full, on a fresh connection
// and after one that was answered: one delivery per call, and the truth.
func TestBrokenConnectionIsNeverSentTwice(t *testing.T) {
	t.Parallel()
	for _, effect := range []loop.Effect{sideEffect, irreversible} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "GET"} {
			for _, before := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s %s after %d", effect, method, before), func(t *testing.T) {
					t.Parallel()
					s, r := newResetting(t, before), localRunner()
					for range before {
						if reply := r.Call(t.Context(), request(effect, method, s.URL, `{"a":1}`)); reply.Outcome != loop.OutcomeOK {
							t.Fatalf("first call: %+v", reply)
						}
					}
					reply := r.Call(t.Context(), request(effect, method, s.URL, `{"a":1}`))
					if reply.Outcome != loop.OutcomeUnknown || told(t, reply).Kind != "outcome_unknown" {
						t.Errorf("reply %+v, want the outcome unknown", reply)
					}
					if n := s.deliveries(); n != before+1 {
						t.Errorf("%d calls made %d deliveries", before+1, n)
					}
				})
			}
		}
	}
}

// Each of these alone keeps net/http from repeating a request; all are in place,
// so that a new way of repeating would have to get past the others too.
func TestEveryWayToRepeatIsClosed(t *testing.T) {
	t.Parallel()
	r := localRunner()
	for effect, single := range map[loop.Effect]bool{readOnly: false, idempotent: false, sideEffect: true, irreversible: true, "": true} {
		hr, _, err := r.newRequest(t.Context(), request(effect, "POST", "http://127.0.0.1:1", `{}`))
		if err != nil {
			t.Fatal(err)
		}
		if (hr.GetBody == nil) != single {
			t.Errorf("%q: the body can be rewound: %v", effect, hr.GetBody != nil)
		}
	}
	transport := r.single.Transport.(*http.Transport)
	if !transport.DisableKeepAlives || transport.Protocols.HTTP2() || transport.Protocols.UnencryptedHTTP2() || !transport.Protocols.HTTP1() {
		t.Errorf("keep-alives off: %v, protocols %v", transport.DisableKeepAlives, transport.Protocols)
	}
}

// A repeatable call keeps its connection, and is told apart from one in doubt.
func TestBrokenConnectionOfRepeatableCalls(t *testing.T) {
	t.Parallel()
	for _, effect := range []loop.Effect{readOnly, idempotent} {
		s := newResetting(t, 0)
		reply := localRunner().Call(t.Context(), request(effect, "POST", s.URL, `{}`))
		if reply.Outcome != loop.OutcomeRetryable || told(t, reply).Kind != "connection" {
			t.Errorf("%s: %+v", effect, reply)
		}
	}
}

func TestRedirectsOfUnrepeatableCallsAreNotFollowed(t *testing.T) {
	t.Parallel()
	other, reached := serve(t, answer(200, "moved"))
	for _, status := range []int{301, 302, 303, 307, 308} {
		url, deliveries := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, status) })
		reply := localRunner().Call(t.Context(), request(sideEffect, "POST", url, `{}`))
		if reply.Outcome != loop.OutcomeUnknown || reply.Status != status || deliveries() != 1 || reached() != 0 {
			t.Errorf("%d: %+v, %d deliveries, %d followed", status, reply, deliveries(), reached())
		}
	}
}
