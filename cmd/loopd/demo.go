package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/demo"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

// errDemo: a demo run did not end as it should.
var errDemo = errors.New("the demo did not go as it should")

const (
	// demoWait bounds one demo run. They take about one second, all together.
	demoWait = time.Minute
	// demoLook is how soon a run is looked at again whose worker has yet to hear of a
	// decision.
	demoLook = 10 * time.Millisecond
)

// player plays the demo over the public API, as a client with a person beside it.
type player struct {
	*client

	shop *demo.Shop
	once bool // nobody else is there: the demo's person approves what waits
}

// playDemo registers the demo's agents, starts its runs and says how each ended.
func playDemo(ctx context.Context, server, tools string, shop *demo.Shop, once bool, env Env) error {
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	defer conn.Close() //nolint:errcheck // nothing left to say
	p := &player{shop: shop, once: once, client: &client{
		env: env, now: time.Now, runs: loopdv1.NewRunServiceClient(conn), agents: loopdv1.NewAgentServiceClient(conn),
		approvals: loopdv1.NewApprovalServiceClient(conn), policies: loopdv1.NewPolicyServiceClient(conn),
	}}
	if err := p.register(ctx, tools); err != nil {
		return err
	}
	return p.play(ctx)
}

// register makes the agents' next versions, since the tools' address is another each
// time. Policies stay as they are, also as somebody has changed them: what they do not
// approve waits for a person.
func (p *player) register(ctx context.Context, tools string) error {
	for _, a := range demo.Agents(tools) {
		if _, err := p.agents.UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: a, AllowMissing: true}); err != nil {
			return fmt.Errorf("register %s: %w", a.GetName(), err)
		}
	}
	for id, policy := range demo.Policies() {
		_, err := p.policies.CreatePolicy(ctx, &loopdv1.CreatePolicyRequest{PolicyId: id, Policy: policy})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("create policies/%s: %w", id, err)
		}
	}
	return nil
}

// play starts all runs at once and shows them one after the other.
func (p *player) play(ctx context.Context) error {
	scenarios := demo.Scenarios()
	started := make([]*loopdv1.Run, len(scenarios))
	for i, s := range scenarios {
		var err error
		if started[i], err = p.runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: s.Agent, Input: s.Input}); err != nil {
			return fmt.Errorf("start a run of %s: %w", s.Agent, err)
		}
	}
	var failed error
	var sum bill
	for i, s := range scenarios {
		run, err := p.wait(ctx, started[i].GetName())
		if err != nil {
			return fmt.Errorf("wait for %s: %w", started[i].GetName(), err)
		}
		b, err := billOf(run)
		if err != nil {
			return err
		}
		sum = sum.plus(b)
		failed = errors.Join(failed, p.show(ctx, s, run))
	}
	fmt.Fprintf(p.env.Stdout, "\nprompt caching: the demo cost $%s, without it $%s\n", sum.cost, sum.plain)
	return failed
}

// wait waits until a run has ended or, unless the demo is to end by itself, waits for
// somebody.
func (p *player) wait(ctx context.Context, name string) (*loopdv1.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	for {
		run, err := p.runs.WaitRun(ctx, &loopdv1.WaitRunRequest{Name: name, Timeout: durationpb.New(demoWait)})
		if err != nil || run.GetState() != loopdv1.RunState_RUN_STATE_REQUIRES_ACTION || !p.once {
			return run, err
		}
		waiting, err := p.waiting(ctx, run)
		if err != nil {
			return nil, err
		}
		for _, a := range waiting {
			if err := p.approve(ctx, a); err != nil {
				return nil, err
			}
		}
		select {
		case <-time.After(demoLook):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiting is the inbox, as far as it is about the run.
func (p *player) waiting(ctx context.Context, run *loopdv1.Run) ([]*loopdv1.Approval, error) {
	pending := &loopdv1.ListApprovalsRequest{Run: run.GetName(), State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING}
	inbox, err := p.listApprovals(ctx, pending, 0)
	return inbox.GetApprovals(), err
}

// approve is what the demo's person does: read, and approve exactly that.
func (p *player) approve(ctx context.Context, a *loopdv1.Approval) error {
	fmt.Fprintln(p.env.Stdout, "? a call waits for a person")
	if err := showApproval(p.env.Stdout, a, p.now()); err != nil {
		return err
	}
	req := &loopdv1.ApproveRequest{Name: a.GetName(), ExpectedArgumentsHash: a.GetArgumentsSha256(), Reason: "the demo's person has read it"}
	decided, err := p.approvals.Approve(ctx, req)
	if err != nil {
		return fmt.Errorf("approve %s: %w", a.GetName(), err)
	}
	fmt.Fprintf(p.env.Stdout, "  %s by the demo's person, for exactly these arguments\n\n", word(decided.GetState(), "APPROVAL_STATE_"))
	return nil
}

// show prints what became of a run, and checks that it is what the demo says.
func (p *player) show(ctx context.Context, s demo.Scenario, run *loopdv1.Run) error {
	if s.Refunds > 0 && run.GetState() == loopdv1.RunState_RUN_STATE_REQUIRES_ACTION && !p.once {
		return p.showWaiting(ctx, s, run)
	}
	p.showEnd(s, run)
	if run.GetState() != s.State || run.GetStop().GetReason() != s.Reason || run.GetIterations() != s.Iterations {
		return fmt.Errorf("%w: %s (%s) should be %s by %s after %d iterations", errDemo, run.GetName(), s.Title,
			word(s.State, "RUN_STATE_"), word(s.Reason, "STOP_REASON_"), s.Iterations)
	}
	if s.Children > 0 {
		return p.showTree(ctx, s, run)
	}
	if s.Refunds > 0 {
		return p.showRefunds(ctx, s, run)
	}
	return nil
}

// showEnd prints one line for an ended run, and the evidence under a stopped one.
func (p *player) showEnd(s demo.Scenario, run *loopdv1.Run) {
	mark := map[loopdv1.RunState]string{
		loopdv1.RunState_RUN_STATE_SUCCEEDED: "✓", loopdv1.RunState_RUN_STATE_STOPPED: "■", loopdv1.RunState_RUN_STATE_FAILED: "✗",
	}[run.GetState()]
	stop := run.GetStop()
	fmt.Fprintf(p.env.Stdout, "%s %s  %-9s  %2d it  $%-10s  %-14s → loopd run show %s\n    %s: %s\n", mark, strings.TrimPrefix(run.GetName(), "runs/"),
		strings.ToLower(stateOf(run)), run.GetIterations(), run.GetCostUsd(), word(stop.GetReason(), "STOP_REASON_"), run.GetName(), s.Title, stop.GetMessage())
	for _, e := range stop.GetEvidence() {
		fmt.Fprintf(p.env.Stdout, "      iteration %d  %s %s  args %s  result %s  %s\n", e.GetIteration(), e.GetTool(), e.GetArguments(), e.GetArgumentsHash(), e.GetResultHash(), cut(oneLine(e.GetResult()), 60))
	}
}

// showWaiting prints what a person can do about a run that waits for one.
func (p *player) showWaiting(ctx context.Context, s demo.Scenario, run *loopdv1.Run) error {
	fmt.Fprintf(p.env.Stdout, "? %s  waits for you, and costs nothing meanwhile\n    %s\n", strings.TrimPrefix(run.GetName(), "runs/"), s.Title)
	waiting, err := p.waiting(ctx, run)
	if err != nil {
		return err
	}
	for _, a := range waiting {
		fmt.Fprintf(p.env.Stdout, "      %s %s, time left %s → %s\n", oneLine(a.GetTool()), cut(a.GetArgumentsJson(), 80), left(a.GetExpireTime(), p.now()), decisions(a)[0])
	}
	p.showLedger(s, run)
	return nil
}

// showRefunds prints who approved which refund, what loopd says was done and what the
// shop says, and holds the two together.
func (p *player) showRefunds(ctx context.Context, s demo.Scenario, run *loopdv1.Run) error {
	decided, err := p.listApprovals(ctx, &loopdv1.ListApprovalsRequest{Run: run.GetName()}, 0)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.env.Stdout, "\nApprovals")
	rows := [][]string{{"CALL", "ARGUMENTS", "STATE", "BY", "WHY"}}
	for _, a := range slices.Backward(decided.GetApprovals()) { // the newest came first
		rows = append(rows, []string{shortCall(a.GetToolCall()), a.GetArgumentsJson(), word(a.GetState(), "APPROVAL_STATE_"), a.GetDecidedBy(), a.GetComment()})
	}
	if err := indentedTable(p.env.Stdout, "  ", rows); err != nil {
		return err
	}
	if err := showSideEffects(p.env.Stdout, run); err != nil {
		return err
	}
	refunds := p.showLedger(s, run)
	same := len(refunds) == len(run.GetSideEffects())
	for i := range min(len(refunds), len(run.GetSideEffects())) {
		same = same && refunds[i].Key == run.GetSideEffects()[i].GetIdempotencyKey()
	}
	if len(refunds) != s.Refunds || !same {
		return fmt.Errorf("%w: %s (%s) should have made %d refunds, and the shop's ledger and the run's should agree", errDemo, run.GetName(), s.Title, s.Refunds)
	}
	return nil
}

// showLedger prints what the shop itself wrote down about the run's refunds.
func (p *player) showLedger(s demo.Scenario, run *loopdv1.Run) []demo.Refund {
	refunds := p.shop.Refunds("loopd:" + strings.TrimPrefix(run.GetName(), "runs/") + ":")
	fmt.Fprintf(p.env.Stdout, "\nThe shop's own ledger: exactly %d of %d refunds happened\n", len(refunds), s.Refunds)
	for _, r := range refunds {
		fmt.Fprintf(p.env.Stdout, "  %s  %s %s  key %s\n", r.Order, r.Amount, r.Currency, r.Key)
	}
	return refunds
}

// showTree prints what each child run cost and what that makes for the whole tree, with
// the prompt cache and without.
func (p *player) showTree(ctx context.Context, s demo.Scenario, run *loopdv1.Run) error {
	children, err := p.childRuns(ctx, run)
	if err != nil {
		return err
	}
	tree, err := billOf(run) // a run's bill has its child runs' in it
	if err != nil {
		return err
	}
	own, bad := tree, len(children) != s.Children
	rows := [][]string{{"RUN", "AGENT", "ITERATIONS", "TOKENS READ", "FROM CACHE", "COST USD", "WITHOUT CACHE"}}
	for _, child := range children {
		b, err := billOf(child.run)
		if err != nil {
			return err
		}
		own = own.minus(b)
		rows = append(rows, b.row(child.run.GetName(), child.run))
		bad = bad || child.run.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || !child.settled
	}
	rows = append(rows, own.row("this run itself", run), tree.row("together", nil))
	fmt.Fprintln(p.env.Stdout, "\nChild runs")
	if err := indentedTable(p.env.Stdout, "  ", rows); err != nil {
		return err
	}
	const perDay = 100_000
	fmt.Fprintf(p.env.Stdout, "  %d such runs a day: $%s, without the cache $%s\n\n", perDay, tree.cost*perDay, tree.plain*perDay)
	if bad || own.cost <= 0 {
		return fmt.Errorf("%w: %s (%s) should have %d child runs that succeeded, and a cost of its own", errDemo, run.GetName(), s.Title, s.Children)
	}
	return nil
}

// bill is what a run cost, and what it would have cost if the provider had read every
// token anew.
type bill struct {
	cost, plain  loop.USD
	read, cached int64 // tokens
}

func billOf(run *loopdv1.Run) (bill, error) {
	book, err := pricing.Bundled()
	if err != nil {
		return bill{}, err
	}
	price, err := book.Price("scripted/demo")
	if err != nil {
		return bill{}, err
	}
	cost, err := loop.ParseUSD(run.GetCostUsd())
	if err != nil {
		return bill{}, fmt.Errorf("cost of %s: %w", run.GetName(), err)
	}
	u := run.GetUsage()
	read := u.GetInputUncachedTokens() + u.GetCacheReadTokens() + u.GetCacheWriteTokens()
	plain := price.Cost(loop.Usage{InputUncached: read, Output: u.GetOutputTokens(), Reasoning: u.GetReasoningTokens()})
	return bill{cost: cost, plain: plain.Total(), read: read, cached: u.GetCacheReadTokens()}, nil
}

func (b bill) plus(o bill) bill {
	return bill{b.cost + o.cost, b.plain + o.plain, b.read + o.read, b.cached + o.cached}
}

func (b bill) minus(o bill) bill {
	return bill{b.cost - o.cost, b.plain - o.plain, b.read - o.read, b.cached - o.cached}
}

// row is a bill in the table of a tree; it may be that of no single run.
func (b bill) row(title string, run *loopdv1.Run) []string {
	agent, iterations := "-", "-"
	if run != nil {
		agent, iterations = run.GetAgent(), strconv.Itoa(int(run.GetIterations()))
	}
	return []string{title, agent, iterations, strconv.FormatInt(b.read, 10), strconv.FormatInt(b.cached, 10), b.cost.String(), b.plain.String()}
}
