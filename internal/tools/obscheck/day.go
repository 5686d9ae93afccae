package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"syscall"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// usual is how often which agent is asked for something, and what.
func usual() map[string]int {
	return map[string]int{
		"clerk": 8, "support": 4, "inventory": 2, "explorer": 2, "analyst": 1, "newcomer": 2, "editor": 1, "cashier": 2, "throttled": 1, "locked": 1,
		"flaky": 1, "refuser": 1, "unlucky": 2, "careless": 1, "silent": 1, "formal": 2, "asker": 1, "payer": 2, "outsider": 1, "digger": 2, "spender": 1, "steady": 2,
	}
}

// drawn picks agents as often as they are usual.
func drawn(random *rand.Rand) string {
	var all []string
	for name, times := range usual() {
		for range times {
			all = append(all, name)
		}
	}
	return all[random.IntN(len(all))]
}

// begin starts a run of an agent.
func (r *replica) begin(ctx context.Context, agent, input string) error {
	if _, err := r.runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: "agents/" + agent, Input: input}); err != nil {
		return fmt.Errorf("start a run of %s: %w", agent, err)
	}
	return nil
}

// beginMany starts runs of an agent.
func (r *replica) beginMany(ctx context.Context, agent string, n int) error {
	for i := range n {
		if err := r.begin(ctx, agent, fmt.Sprintf("number %d", i)); err != nil {
			return err
		}
	}
	return nil
}

// live lives through a day: many runs of all agents, people who decide now and then, a
// reader who comes back, a client that asks twice, a worker that dies, one that is
// suspended, one that is replaced.
func (w *world) live(ctx context.Context, length time.Duration) error {
	day, end := context.WithTimeout(ctx, length)
	defer end()
	var all group
	for _, what := range []func(context.Context){w.load, w.people, w.readers} {
		all.do(func() { what(day) })
	}
	err := w.mishaps(day, length)
	all.wait()
	if err != nil && ctx.Err() == nil && day.Err() != nil {
		return nil // the day ended in the middle of one
	}
	return err
}

// load starts runs at both replicas. One that is down refuses them, as it would.
func (w *world) load(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 2)) // the same day each time
	for n := 0; pause(ctx, 400*time.Millisecond); n++ {
		at := w.replicas[random.IntN(len(w.replicas))]
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		request := &loopdv1.CreateRunRequest{Agent: "agents/" + drawn(random), Input: fmt.Sprintf("number %d", n), RequestId: fmt.Sprintf("day-%d", n)}
		_, err := at.runs.CreateRun(call, request)
		if err == nil && n%10 == 0 {
			_, _ = at.runs.CreateRun(call, request) // a client that did not hear the answer
		}
		cancel()
	}
}

// people decide half of what waits, differently; the rest runs out of time.
func (w *world) people(ctx context.Context) {
	at := w.replicas[0]
	approvals := loopdv1.NewApprovalServiceClient(at.conn)
	for n := 0; pause(ctx, time.Second); {
		inbox, err := approvals.ListApprovals(ctx, &loopdv1.ListApprovalsRequest{State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING})
		if err != nil {
			continue
		}
		for _, a := range inbox.GetApprovals() {
			n++
			switch {
			case a.GetTool() == "ask_human":
				_, _ = approvals.Answer(ctx, &loopdv1.AnswerRequest{Name: a.GetName(), Answer: &loopdv1.AnswerRequest_Text{Text: "The first."}})
			case n%4 == 0:
				_, _ = approvals.Deny(ctx, &loopdv1.DenyRequest{Name: a.GetName(), Reason: "not today"})
			case n%4 < 3:
				_, _ = approvals.Approve(ctx, &loopdv1.ApproveRequest{Name: a.GetName(), ExpectedArgumentsHash: a.GetArgumentsSha256()})
			}
		}
		w.submit(ctx)
	}
}

// submit gives the results of tools that callers run themselves.
func (w *world) submit(ctx context.Context) {
	at := w.replicas[0]
	waiting, err := at.runs.ListRuns(ctx, &loopdv1.ListRunsRequest{Agent: "agents/outsider", States: []loopdv1.RunState{loopdv1.RunState_RUN_STATE_REQUIRES_ACTION}})
	if err != nil {
		return
	}
	for _, run := range waiting.GetRuns() {
		calls, err := at.runs.ListToolCalls(ctx, &loopdv1.ListToolCallsRequest{Parent: run.GetName()})
		if err != nil {
			return
		}
		for _, c := range calls.GetToolCalls() {
			_, _ = at.runs.SubmitToolResults(ctx, &loopdv1.SubmitToolResultsRequest{
				Name: run.GetName(), Results: []*loopdv1.ToolResultInput{
					{Call: path.Base(c.GetName()), Attempt: max(1, c.GetAttempt()), Outcome: &loopdv1.ToolResultInput_Content{Content: `{"ok": true}`}},
				},
			})
		}
	}
}

// readers list runs over REST and follow their events, go away, and come back.
func (w *world) readers(ctx context.Context) {
	for n := 0; pause(ctx, 700*time.Millisecond); n++ {
		at := "http://" + w.replicas[0].http
		var page struct {
			Runs []struct{ Name string }
		}
		if err := get(ctx, at+"/v1/runs?page_size=5", &page); err != nil || len(page.Runs) == 0 {
			continue
		}
		look, cancel := context.WithTimeout(ctx, 3*time.Second)
		req, err := http.NewRequestWithContext(look, http.MethodGet, at+"/v1/"+page.Runs[n%len(page.Runs)].Name+"/events:stream", http.NoBody)
		if err == nil {
			if n%2 == 0 {
				req.Header.Set("Last-Event-ID", "1")
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
		_ = get(ctx, at+"/v1/runs/nobody", &struct{}{})
		cancel()
	}
}

// mishaps come at their times of the day.
func (w *world) mishaps(ctx context.Context, length time.Duration) error {
	b := w.replicas[1]
	if !pause(ctx, length/4) {
		return nil
	}
	b.process.kill() // power
	if !pause(ctx, 2*leaseTTL) {
		return nil
	}
	if err := b.start(ctx, "--max-runs", "24"); err != nil {
		return err
	}
	if !pause(ctx, length/6) {
		return nil
	}
	b.process.signal(syscall.SIGSTOP) // a suspended machine
	pause(ctx, 3*leaseTTL)
	b.process.signal(syscall.SIGCONT)
	if !pause(ctx, length/6) {
		return nil
	}
	b.process.signal(syscall.SIGTERM) // a roll-out, with another configuration
	select {
	case <-b.process.done:
	case <-ctx.Done():
		return nil
	}
	return b.start(ctx, "--max-runs", "32")
}
