package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// scripted is a transport that answers with a status each time, or an error for 0.
type scripted struct {
	status int
	sent   int
	gate   chan struct{} // not nil: answers wait for it
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.sent++
	status := s.status
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

func scriptedRunner() (*Runner, *scripted) {
	r, s := New(Config{}), &scripted{status: 500}
	r.single.Transport, r.repeatable.Transport = s, s
	return r, s
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, server := scriptedRunner()
		req := request(readOnly, "GET", "http://shop.example/", ``)
		call := func() loop.ToolReply { return r.Call(t.Context(), req) }
		refused := func(reply loop.ToolReply) bool {
			return reply.Outcome == loop.OutcomeNotSent && told(t, reply).Kind == "tool_unavailable"
		}
		for range 5 {
			if reply := call(); reply.Outcome != loop.OutcomePermanent {
				t.Fatalf("%+v", reply)
			}
			time.Sleep(time.Second)
		}
		reply := call()
		if got := told(t, reply); !refused(reply) || *got.RetryAfter != 29 || !strings.HasSuffix(got.Message, "Nothing was sent. Retry after 29 s.") || server.sent != 5 {
			t.Errorf("open: %+v, %d sent", reply, server.sent)
		}
		if diff := cmp.Diff(map[string]string{"act@shop.example": "open"}, r.Breakers()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		// Another tenant, tool and host have breakers of their own; another version has not.
		for name, change := range map[string]func(*Request){
			"tenant":  func(q *Request) { q.Run.Tenant = "other" },
			"tool":    func(q *Request) { q.Spec.Name = "other" },
			"host":    func(q *Request) { q.Spec.HTTP = &loop.HTTPSpec{Method: "GET", URL: "http://shop.example:81/"} },
			"version": func(q *Request) { q.Spec.HTTP = &loop.HTTPSpec{Method: "GET", URL: "http://shop.example/v2"} },
		} {
			other := req
			change(&other)
			if reply := r.Call(t.Context(), other); refused(reply) != (name == "version") {
				t.Errorf("another %s: %+v", name, reply)
			}
		}
		if got := r.Breakers()["act@shop.example"]; got != "open" {
			t.Errorf("the worst of two tenants is %s", got)
		}
		// What cannot be sent anyway is told as such.
		bad := req
		bad.Call.Args = `[]`
		if reply := r.Call(t.Context(), bad); reply.Outcome != loop.OutcomeInvalidArgs {
			t.Errorf("bad arguments: %+v", reply)
		}

		time.Sleep(29 * time.Second)
		if got := r.Breakers()["act@shop.example"]; got != "half_open" {
			t.Errorf("after 30 s: %s", got)
		}
		sent := server.sent
		if reply := call(); refused(reply) || server.sent != sent+1 || !refused(call()) {
			t.Errorf("failed probe: %+v, %d sent", reply, server.sent-sent)
		}

		time.Sleep(openSpan)
		server.status, server.gate = 404, make(chan struct{})
		probe := make(chan loop.ToolReply)
		go func() { probe <- call() }()
		synctest.Wait()
		if reply := call(); !refused(reply) || *told(t, reply).RetryAfter != 1 {
			t.Errorf("beside the probe: %+v", reply)
		}
		close(server.gate)
		if reply := <-probe; reply.Outcome != loop.OutcomePermanent || r.Breakers()["act@shop.example"] != "closed" {
			t.Errorf("probe: %+v, %s", reply, r.Breakers())
		}
	})
}

// Only what says that the tool does not work counts, and only in a row and in time.
func TestWhatTheBreakerCounts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		effect   loop.Effect
		statuses []int
		pause    time.Duration
		open     bool
	}{
		"500 of a read":          {readOnly, []int{500, 500, 500, 500, 500}, 0, true},
		"unknown outcomes":       {irreversible, []int{503, 409, 302, 408, 500}, 0, true},
		"four":                   {readOnly, []int{500, 500, 500, 500}, 0, false},
		"refusals":               {readOnly, []int{400, 404, 422, 401, 403, 400}, 0, false},
		"waits":                  {readOnly, []int{429, 503, 502, 504, 429, 503}, 0, false},
		"not sent":               {irreversible, []int{0, 0, 0, 0, 0, 0}, 0, false},
		"an answer between":      {readOnly, []int{500, 500, 500, 500, 200, 500, 500, 500, 500}, 0, false},
		"waits between":          {readOnly, []int{500, 503, 500, 429, 500, 500, 500}, 0, true},
		"slow":                   {readOnly, []int{500, 500, 500, 500, 500, 500, 500}, 16 * time.Second, false},
		"just fast enough":       {readOnly, []int{500, 500, 500, 500, 500}, 14 * time.Second, true},
		"a refusal between them": {readOnly, []int{500, 500, 500, 404, 500, 500}, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, server := scriptedRunner()
			for _, server.status = range test.statuses {
				r.Call(t.Context(), request(test.effect, "POST", "http://shop.example/", `{}`))
				time.Sleep(test.pause)
			}
			if states := r.Breakers(); (states["act@shop.example"] == "open") != test.open || server.sent != len(test.statuses) {
				t.Errorf("%s: %v after %d calls, want open = %v", name, states, server.sent, test.open)
			}
		})
	}
}

// A probe that says nothing leaves the place to the next one, and a call that was
// under way before the breaker opened decides nothing after it.
func TestBreakerProbesAreNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, server := scriptedRunner()
		req := request(idempotent, "POST", "http://shop.example/", `{}`)
		server.gate = make(chan struct{})
		old := make(chan loop.ToolReply)
		slow := *server
		slow.status = 200
		r.repeatable.Transport = &slow
		go func() { old <- r.Call(t.Context(), req) }()
		synctest.Wait()
		server.gate = nil
		r.repeatable.Transport = server
		for range tripCount {
			r.Call(t.Context(), req)
		}
		close(slow.gate)
		if reply := <-old; reply.Outcome != loop.OutcomeOK || r.Breakers()["act@shop.example"] != "open" {
			t.Errorf("a late answer: %+v, %v", reply, r.Breakers())
		}

		time.Sleep(openSpan)
		for name, probe := range map[string]func(){
			"not sent": func() { server.status = 0; r.Call(t.Context(), req) },
			"cancelled": func() {
				ctx, cancel := context.WithCancel(t.Context())
				server.gate = make(chan struct{})
				done := make(chan struct{})
				go func() { r.Call(ctx, req); close(done) }()
				synctest.Wait()
				cancel()
				<-done
				server.gate = nil
			},
			"panic": func() {
				r.repeatable.Transport = panicky{&scripted{status: 200}}
				r.Call(t.Context(), req)
				r.repeatable.Transport = server
			},
		} {
			if probe(); r.Breakers()["act@shop.example"] != "half_open" {
				t.Errorf("%s: %v", name, r.Breakers())
			}
		}
		server.status = 200
		if reply := r.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK || r.Breakers()["act@shop.example"] != "closed" {
			t.Errorf("%+v, %v", reply, r.Breakers())
		}
	})
}

func TestBreakersAreBounded(t *testing.T) {
	t.Parallel()
	bs, now := newBreakers(), time.Now()
	first := breakerKey{tool: "first"}
	for range tripCount {
		p, _, _ := bs.enter(first, now)
		bs.leave(p, fails, now)
	}
	for i := range 3 * maxBreakers {
		p, _, _ := bs.enter(breakerKey{tool: fmt.Sprint(i)}, now)
		bs.leave(p, works, now)
	}
	if _, _, ok := bs.enter(first, now); ok || len(bs.by) > maxBreakers {
		t.Errorf("open one forgotten: %v, %d breakers", ok, len(bs.by))
	}
}
