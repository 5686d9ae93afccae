package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/loopd/loopd/internal/loop"
)

func TestCallsShareASessionWithinATenant(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
	c := newClient(t, nil)
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			req := request(server.URL, loop.ReadOnly)
			req.Run.Tenant = fmt.Sprintf("t%d", i%2)
			if reply := c.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK {
				t.Errorf("reply = %+v", reply)
			}
		})
	}
	calls.Wait()
	if n := server.count("initialize"); n != 2 {
		t.Errorf("%d sessions were opened, want one for each tenant", n)
	}
	if n := len(server.ledger()); n != 20 {
		t.Errorf("%d calls came, want 20", n)
	}
}

func TestAForgottenSession(t *testing.T) {
	t.Parallel()
	for effect, want := range map[loop.Effect]struct {
		outcome loop.Outcome
		sends   int
	}{
		loop.Idempotent:   {loop.OutcomeOK, 2},        // the second on a new session
		loop.Irreversible: {loop.OutcomeRetryable, 1}, // it did not run, and is not sent again
	} {
		t.Run(string(effect), func(t *testing.T) {
			t.Parallel()
			server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
			c := newClient(t, nil)
			if _, err := c.list(t.Context(), resolved(t, c, server.URL)); err != nil {
				t.Fatal(err)
			}
			server.forget("s1")

			reply := c.Call(t.Context(), request(server.URL, effect))
			if n := len(server.ledger()); reply.Outcome != want.outcome || n != want.sends {
				t.Errorf("outcome %s after %d sends, want %s after %d: %s", reply.Outcome, n, want.outcome, want.sends, reply.Content)
			}

			reply = c.Call(t.Context(), request(server.URL, effect))
			if n := server.count("initialize"); reply.Outcome != loop.OutcomeOK || n != 2 {
				t.Errorf("the next call: outcome %s, %d sessions; want ok on the second", reply.Outcome, n)
			}
		})
	}
}

// resolved is where the calls of request lead.
func resolved(t *testing.T, c *Client, url string) server {
	t.Helper()
	to, err := c.resolve("t1", loop.MCPSpec{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestAForgottenSessionIsNoticedBeforeTheCall has the server forget the session
// while the list of tools must be looked up anew: nothing was sent then, so the
// call is made on a new session whatever its effect.
func TestAForgottenSessionIsNoticedBeforeTheCall(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
	c := newClient(t, nil)
	if reply := c.Call(t.Context(), request(server.URL, loop.Irreversible)); reply.Outcome != loop.OutcomeOK {
		t.Fatalf("first call: %+v", reply)
	}
	server.forget("s1")
	c.sessions[resolved(t, c, server.URL).key].changed()

	reply := c.Call(t.Context(), request(server.URL, loop.Irreversible))

	if n := len(server.ledger()); reply.Outcome != loop.OutcomeOK || n != 2 {
		t.Errorf("outcome %s, %d calls came in all; want ok and 2: %s", reply.Outcome, n, reply.Content)
	}
}

// TestABadAnswerIsOneCallsProblem holds one call open while another on the same
// session gets garbage in every form.
func TestABadAnswerIsOneCallsProblem(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	bad := []func(w http.ResponseWriter, m message){
		func(w http.ResponseWriter, _ message) { answer(w, "{chaos") },
		func(w http.ResponseWriter, _ message) { w.WriteHeader(http.StatusUnauthorized) },
		func(w http.ResponseWriter, _ message) { stream(w, "id: 1\ndata: {chaos") },
		func(w http.ResponseWriter, _ message) { stream(w, "no colon") },
		func(w http.ResponseWriter, _ message) { stream(w, "id: 1\nretry: 1\ndata:") },
		func(w http.ResponseWriter, _ message) { reset(w) },
	}
	server := newFake(t, nil)
	server.resume = func(w http.ResponseWriter, _ *http.Request) { stream(w, "id: 1\nretry: 1\ndata:") }
	server.call = func(w http.ResponseWriter, _ *http.Request, m message) {
		if string(m.Params.Arguments) == `{"slow":true}` {
			close(arrived)
			<-release
			answer(w, m.text("done"))
			return
		}
		bad[len(server.ledger())-2](w, m)
	}
	c := newClient(t, nil)
	slow := request(server.URL, loop.Irreversible)
	slow.Call.Args = `{"slow":true}`
	replies := make(chan loop.ToolReply, 1)
	go func() { replies <- c.Call(t.Context(), slow) }()
	<-arrived

	for range bad {
		if reply := c.Call(t.Context(), request(server.URL, loop.ReadOnly)); reply.Outcome == loop.OutcomeOK {
			t.Errorf("a bad answer is ok: %+v", reply)
		}
	}
	close(release)

	if reply := <-replies; reply.Outcome != loop.OutcomeOK {
		t.Errorf("the neighbour's reply = %+v, want ok", reply)
	}
}

func TestAnUnusedSessionIsClosed(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
	c := newClient(t, func(cfg *Config) { cfg.KeepIdle = time.Millisecond })
	for opened := range 2 {
		if reply := c.Call(t.Context(), request(server.URL, loop.ReadOnly)); reply.Outcome != loop.OutcomeOK {
			t.Fatalf("reply = %+v", reply)
		}
		await(t, "a goodbye", func() bool { return server.count(http.MethodDelete) == opened+1 })
	}
	if n := server.count("initialize"); n != 2 {
		t.Errorf("%d sessions were opened, want 2", n)
	}
}

func TestCloseGivesUpWhatIsInFlight(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server := newFake(t, func(_ http.ResponseWriter, r *http.Request, _ message) { close(arrived); <-r.Context().Done() })
	c := newClient(t, nil)
	replies := make(chan loop.ToolReply, 1)
	go func() { replies <- c.Call(t.Context(), request(server.URL, loop.SideEffect)) }()
	<-arrived

	c.Close()

	if reply := <-replies; reply.Outcome != loop.OutcomeUnknown {
		t.Errorf("outcome = %s, want unknown", reply.Outcome)
	}
	if reply := c.Call(t.Context(), request(server.URL, loop.SideEffect)); reply.Outcome != loop.OutcomeNotSent {
		t.Errorf("outcome after Close = %s, want not_sent", reply.Outcome)
	}
}

func TestCancellingTellsTheServer(t *testing.T) {
	t.Parallel()
	for effect, want := range map[loop.Effect]loop.Outcome{loop.ReadOnly: loop.OutcomeCancelled, loop.SideEffect: loop.OutcomeUnknown} {
		ctx, cancel := context.WithCancel(t.Context())
		server := newFake(t, func(_ http.ResponseWriter, r *http.Request, _ message) { cancel(); <-r.Context().Done() })
		reply := newClient(t, nil).Call(ctx, request(server.URL, effect))
		if reply.Outcome != want {
			t.Errorf("%s: outcome = %s, want %s", effect, reply.Outcome, want)
		}
		await(t, "notifications/cancelled", func() bool { return server.count("notifications/cancelled") == 1 })
	}
}

func TestACancelledCallThatWaitsForASessionIsNotSent(t *testing.T) {
	t.Parallel()
	server := newFake(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	reply := newClient(t, nil).Call(ctx, request(server.URL, loop.SideEffect))
	if reply.Outcome != loop.OutcomeCancelled || len(server.ledger()) != 0 {
		t.Errorf("outcome = %s after %d calls, want cancelled after none", reply.Outcome, len(server.ledger()))
	}
}

// TestProgressIsASignOfLife runs a tool that is never silent for long, and one
// that is.
func TestProgressIsASignOfLife(t *testing.T) {
	t.Parallel()
	server := newServer()
	server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := range 20 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if strings.Contains(string(req.Params.Arguments), "silent") {
				continue
			}
			err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i)})
			if err != nil {
				return nil, err
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil
	})
	url := serve(t, server, false)
	c := newClient(t, func(cfg *Config) { cfg.MaxSilence = 700 * time.Millisecond })
	for args, want := range map[string]loop.Outcome{`{}`: loop.OutcomeOK, `{"silent":1}`: loop.OutcomeTimeout} {
		t.Run(args, func(t *testing.T) {
			req := request(url, loop.ReadOnly)
			req.Call.Args = args
			if reply := c.Call(t.Context(), req); reply.Outcome != want {
				t.Errorf("outcome = %s, want %s: %s", reply.Outcome, want, reply.Content)
			}
		})
	}
	t.Run("the timeout holds all the same", func(t *testing.T) {
		req := request(url, loop.ReadOnly)
		req.Call.Args, req.Spec.Timeout = `{}`, 300*time.Millisecond
		if reply := c.Call(t.Context(), req); reply.Outcome != loop.OutcomeTimeout {
			t.Errorf("outcome = %s, want timeout: %s", reply.Outcome, reply.Content)
		}
	})
}

// TestServersGetNothing has a tool ask for all that a client may offer.
func TestServersGetNothing(t *testing.T) {
	t.Parallel()
	server := newServer()
	server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_, elicit := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "your password?", RequestedSchema: anyObject})
		_, sample := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 1}) //nolint:staticcheck // servers still ask
		if elicit == nil || sample == nil {
			return nil, errors.New("loopd answered")
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "refused"}}}, nil
	})
	url := serve(t, server, false)
	reply := newClient(t, nil).Call(t.Context(), request(url, loop.ReadOnly))
	if reply.Outcome != loop.OutcomeOK || reply.Content != "refused" {
		t.Errorf("reply = %+v, want both requests refused", reply)
	}
}

func TestAServerThatNeedsInputIsRefusedAndNotAskedAgain(t *testing.T) {
	t.Parallel()
	var runs sync.Map
	server := newServer()
	server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		runs.Store(time.Now(), true)
		return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Message: "sure?", RequestedSchema: anyObject}}}, nil
	})
	url := serve(t, server, true)
	reply := newClient(t, nil).Call(t.Context(), request(url, loop.SideEffect))
	if reply.Outcome != loop.OutcomePermanent || kindOf(t, reply) != "input_required" {
		t.Errorf("reply = %+v, want input_required", reply)
	}
	n := 0
	runs.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("the tool ran %d times, want once", n)
	}
}

// TestAServerThatEndsWhileItWorks closes it under a call, once with a stream that
// could be resumed, if anybody were there.
func TestAServerThatEndsWhileItWorks(t *testing.T) {
	t.Parallel()
	for event, limit := range map[string]time.Duration{": no ID": 5 * time.Second, "id: 1\nretry: 10\ndata:": 2 * time.Second} {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			arrived := make(chan struct{})
			server := newFake(t, func(w http.ResponseWriter, r *http.Request, _ message) {
				stream(w, event)
				close(arrived)
				<-r.Context().Done()
			})
			c := newClient(t, nil)
			req := request(server.URL, loop.Irreversible)
			req.Spec.Timeout = limit
			replies := make(chan loop.ToolReply, 1)
			go func() { replies <- c.Call(t.Context(), req) }()
			<-arrived
			_ = server.Listener.Close()
			server.CloseClientConnections()
			reply := <-replies
			if reply.Outcome != loop.OutcomeUnknown || reply.Duration > limit+time.Second {
				t.Errorf("outcome %s after %s, want unknown: %s", reply.Outcome, reply.Duration, reply.Content)
			}
			if resumable := strings.HasPrefix(event, "id"); !resumable && reply.Duration > 4*time.Second {
				t.Errorf("took %s to notice that the stream is gone", reply.Duration)
			}
		})
	}
}
