package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// created is what the client knows of one run.
type created struct {
	key, input string
	names      map[string]bool // what its creation was answered with; more than one is a fault
	cancelled  time.Time       // when the cancel was acknowledged; zero: it was not
	priority   loopdv1.Priority
}

// headStarts is a priority as loopd keeps it.
func headStarts(p loopdv1.Priority) int {
	switch p {
	case loopdv1.Priority_PRIORITY_HIGH:
		return 1
	case loopdv1.Priority_PRIORITY_LOW:
		return -1
	default:
		return 0
	}
}

// client is all people who use loopd: they create, decide, answer and change their minds.
type client struct {
	replicas []*replica
	tools    *toolServer
	rest     http.Client
	urgent   bool        // runs are given priorities: a binary from before there were any has none
	healed   atomic.Bool // no request can be under way any more that a fault delayed

	registers registers
	doors     chan struct{} // holds one for each client that creates a run now

	mu       sync.Mutex
	runs     []*created
	watched  []*watched
	approved map[string]string // call: the hash it was approved with, by the time this was sent
	counts   map[string]int
}

func newClient(replicas []*replica, tools *toolServer) *client {
	return &client{
		replicas: replicas, tools: tools, rest: http.Client{Timeout: 4 * time.Second},
		approved: map[string]string{}, counts: map[string]int{}, doors: make(chan struct{}, 16), registers: registers{history: map[string][]porcupine.Operation{}},
	}
}

func (c *client) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

func (c *client) any() *replica { return c.replicas[rand.IntN(len(c.replicas))] }

// unclear reports whether the request may be repeated, and must be.
func unclear(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.Aborted, codes.ResourceExhausted, codes.Canceled:
		return true
	}
	return false
}

// insist repeats a request at any replica until the answer is clear or ctx ends.
func (c *client) insist(ctx context.Context, what string, ask func(context.Context, *replica) error) error {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 3*time.Second) {
		once, cancel := context.WithTimeout(ctx, 4*time.Second)
		err := ask(once, c.any())
		cancel()
		if err == nil || !unclear(err) {
			c.count(what + " " + status.Code(err).String())
			return err
		}
		c.count("unclear " + status.Code(err).String())
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return err
		}
	}
}

// create makes one run and does to it what was drawn for it.
func (c *client) create(ctx context.Context, r *rand.Rand, p plan) {
	overREST, again, fate, delay := r.IntN(2) == 0, r.IntN(10) == 0, r.IntN(10), time.Duration(r.IntN(6000))*time.Millisecond
	run := &created{key: "torture-" + p.tag, input: p.String(), names: map[string]bool{}}
	if c.urgent {
		run.priority = loopdv1.Priority(r.Int32N(4))
	}
	c.mu.Lock()
	c.runs = append(c.runs, run)
	c.mu.Unlock()
	times := 1
	if again {
		times = 2
	}
	name := ""
	c.doors <- struct{}{} // a crowd that insists would be all that a slow machine does
	for range times {
		_ = c.insist(ctx, "create", func(ctx context.Context, at *replica) error {
			began := time.Now()
			var err error
			name, err = c.createOnce(ctx, at, run, overREST)
			c.registers.wrote("run of "+run.input, name, began, err)
			return err
		})
		if name != "" {
			c.mu.Lock()
			run.names[name] = true
			c.mu.Unlock()
		}
	}
	<-c.doors
	if name == "" {
		return
	}
	if fate > 6 {
		c.watch(ctx, name)
		return
	}
	if !pause(ctx, delay) {
		return
	}
	switch fate {
	case 0:
		c.cancel(ctx, run, name)
	case 1:
		c.interrupt(ctx, name)
	}
}

func (c *client) createOnce(ctx context.Context, at *replica, run *created, overREST bool) (string, error) {
	request := &loopdv1.CreateRunRequest{Agent: "agents/torture", Input: run.input, RequestId: run.key, Priority: run.priority}
	if overREST {
		answer := &loopdv1.Run{}
		err := c.post(ctx, at, "/v1/runs", request, answer)
		return answer.GetName(), err
	}
	answer, err := at.runs.CreateRun(ctx, request)
	return answer.GetName(), err
}

// post sends a request over REST.
func (c *client) post(ctx context.Context, at *replica, path string, request, answer proto.Message) error {
	body, err := protojson.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.http+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.rest.Do(r)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	said, err := io.ReadAll(resp.Body)
	switch {
	case err != nil || resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return status.Error(codes.Unavailable, string(said))
	case resp.StatusCode != http.StatusOK:
		return status.Error(codes.InvalidArgument, string(said))
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(said, answer)
}

func (c *client) cancel(ctx context.Context, run *created, name string) {
	err := c.insist(ctx, "cancel", func(ctx context.Context, at *replica) error {
		_, err := at.runs.CancelRun(ctx, &loopdv1.CancelRunRequest{Name: name, Reason: "torture", RequestId: run.key + "-cancel"})
		return err
	})
	if err == nil {
		c.mu.Lock()
		run.cancelled = time.Now()
		c.mu.Unlock()
	}
}

// interrupt pauses a run, and resumes it soon.
func (c *client) interrupt(ctx context.Context, name string) {
	err := c.insist(ctx, "pause", func(ctx context.Context, at *replica) error {
		_, err := at.runs.PauseRun(ctx, &loopdv1.PauseRunRequest{Name: name, RequestId: name[len("runs/"):] + "-pause"})
		return err
	})
	if err != nil || !pause(ctx, 2*time.Second) {
		return
	}
	for { // what is asked to pause is not paused yet, and cannot be resumed
		err := c.insist(ctx, "resume", func(ctx context.Context, at *replica) error {
			_, err := at.runs.ResumeRun(ctx, &loopdv1.ResumeRunRequest{Name: name})
			return err
		})
		if err == nil || c.ended(ctx, name) || !pause(ctx, time.Second) {
			return
		}
	}
}

// ended reports whether a run is known to have ended.
func (c *client) ended(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	run, err := c.any().runs.GetRun(ctx, &loopdv1.GetRunRequest{Name: name})
	return err == nil && run.GetEndTime() != nil
}

// decide looks, until ctx ends, for calls that wait for people, and acts on them.
func (c *client) decide(ctx context.Context) {
	for pause(ctx, 300*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, 4*time.Second)
		answer, err := c.any().runs.ListToolCalls(once, &loopdv1.ListToolCallsRequest{Parent: "runs/-", PageSize: 100, States: []loopdv1.ToolCallState{
			loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_APPROVAL, loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_RESULT,
			loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT,
		}})
		cancel()
		if err != nil {
			c.count("unclear " + status.Code(err).String())
			continue
		}
		for _, call := range answer.GetToolCalls() {
			if err := c.settle(ctx, call); err != nil {
				c.count("settle " + status.Code(err).String())
			}
		}
	}
}

// settle gives one call what it waits for. What is said is drawn from the call's name,
// so that saying it twice says the same.
func (c *client) settle(ctx context.Context, call *loopdv1.ToolCall) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	at := c.any()
	switch call.GetState() {
	case loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_APPROVAL:
		return c.judge(ctx, at, call)
	case loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_RESULT:
		if call.GetTool() != "client" {
			return nil // a child run owes it
		}
		run, id, _ := strings.Cut(call.GetName(), "/toolCalls/")
		_, err := at.runs.SubmitToolResults(ctx, &loopdv1.SubmitToolResultsRequest{Name: run, Results: []*loopdv1.ToolResultInput{{
			Call: id, Attempt: call.GetAttempt(), Outcome: &loopdv1.ToolResultInput_Content{Content: "done by the client"},
		}}})
		c.count("submit " + status.Code(err).String())
		return err
	default:
		return c.resolve(ctx, at, call)
	}
}

// judge decides about a call. About some, two people disagree at the same time; for
// some, somebody first tries an approval of other arguments.
func (c *client) judge(ctx context.Context, at *replica, call *loopdv1.ToolCall) error {
	switch chance(call.GetName(), 5) {
	case 0:
		return c.deny(ctx, at, call)
	case 1:
		var other group
		other.do(func() { _ = c.deny(ctx, c.any(), call) })
		defer other.wait()
	case 2:
		_, err := at.runs.ApproveToolCall(ctx, &loopdv1.ApproveToolCallRequest{Name: call.GetName(), ArgumentsSha256: strings.Repeat("f0", 32)})
		c.count("approve other arguments " + status.Code(err).String())
	}
	c.mu.Lock()
	c.approved[call.GetName()] = call.GetArgumentsSha256()
	c.mu.Unlock()
	began := time.Now()
	_, err := at.runs.ApproveToolCall(ctx, &loopdv1.ApproveToolCallRequest{Name: call.GetName(), ArgumentsSha256: call.GetArgumentsSha256()})
	c.registers.wrote("decision on "+call.GetName(), "approved", began, err)
	c.count("approve " + status.Code(err).String())
	return err
}

func (c *client) deny(ctx context.Context, at *replica, call *loopdv1.ToolCall) error {
	began := time.Now()
	_, err := at.runs.DenyToolCall(ctx, &loopdv1.DenyToolCallRequest{Name: call.GetName(), Reason: "torture"})
	c.registers.wrote("decision on "+call.GetName(), "denied", began, err)
	c.count("deny " + status.Code(err).String())
	return err
}

// resolve says the truth about a call in doubt, as the tool server's ledger has it.
// That it did not arrive is known for sure only when nothing can be under way.
func (c *client) resolve(ctx context.Context, at *replica, call *loopdv1.ToolCall) error {
	request := &loopdv1.ResolveToolCallRequest{Name: call.GetName(), Resolution: loopdv1.Resolution_RESOLUTION_SUCCEEDED}
	if !c.tools.tookEffect(call.GetIdempotencyKey()) {
		if !c.healed.Load() {
			return nil
		}
		request.Resolution = loopdv1.Resolution_RESOLUTION_NOT_EXECUTED
		if chance(call.GetName(), 2) == 0 {
			request.Resolution = loopdv1.Resolution_RESOLUTION_RETRY
		}
	}
	_, err := at.runs.ResolveToolCall(ctx, request)
	c.count(strings.ToLower(request.GetResolution().String()) + " " + status.Code(err).String())
	return err
}

// history is what the client knows of its runs.
func (c *client) history() []*created {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*created(nil), c.runs...)
}

// last makes a run at one replica, which must succeed.
func (c *client) last(ctx context.Context, at *replica, p plan) error {
	run := &created{key: "torture-" + p.tag, input: p.String(), names: map[string]bool{}}
	for {
		once, cancel := context.WithTimeout(ctx, 4*time.Second)
		name, err := c.createOnce(once, at, run, false)
		cancel()
		if err == nil {
			run.names[name] = true
			c.mu.Lock()
			c.runs = append(c.runs, run)
			c.mu.Unlock()
			return c.succeeds(ctx, at, name)
		}
		if !pause(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

func (c *client) succeeds(ctx context.Context, at *replica, name string) error {
	for {
		once, cancel := context.WithTimeout(ctx, 4*time.Second)
		run, err := at.runs.GetRun(once, &loopdv1.GetRunRequest{Name: name})
		cancel()
		switch run.GetState() {
		case loopdv1.RunState_RUN_STATE_SUCCEEDED:
			return nil
		case loopdv1.RunState_RUN_STATE_STOPPED, loopdv1.RunState_RUN_STATE_FAILED, loopdv1.RunState_RUN_STATE_CANCELLED:
			return fmt.Errorf("%s ended as %s", name, run.GetState())
		}
		if !pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("%s is still %s, last asked with the error %v", name, run.GetState(), err) //nolint:errorlint // often there is none
		}
	}
}
