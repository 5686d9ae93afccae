package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/demo"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

// errDemo: a demo run did not end as it should.
var errDemo = errors.New("the demo did not go as it should")

// demoWait bounds one demo run, in seconds. They take about one.
const demoWait = 60

// playDemo registers the demo's agents, starts its runs over the public API and
// says how each ended.
func playDemo(ctx context.Context, server, tools string, env Env) error {
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	defer conn.Close() //nolint:errcheck // nothing left to say
	agents, runs := loopdv1.NewAgentServiceClient(conn), loopdv1.NewRunServiceClient(conn)
	for _, a := range demo.Agents(tools) {
		if _, err := agents.UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: a, AllowMissing: true}, grpc.WaitForReady(true)); err != nil {
			return fmt.Errorf("register %s: %w", a.GetName(), err)
		}
	}
	scenarios := demo.Scenarios()
	started := make([]*loopdv1.Run, len(scenarios))
	for i, s := range scenarios {
		if started[i], err = runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: s.Agent, Input: s.Input}); err != nil {
			return fmt.Errorf("start a run of %s: %w", s.Agent, err)
		}
	}
	var failed error
	var spent, uncached loop.USD
	for i, s := range scenarios {
		run, err := runs.WaitRun(ctx, &loopdv1.WaitRunRequest{Name: started[i].GetName(), Timeout: &durationpb.Duration{Seconds: demoWait}})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", started[i].GetName(), err)
		}
		if err := sayHow(env, s, run); err != nil {
			failed = errors.Join(failed, err)
		}
		cached, plain, err := withoutCache(run)
		if err != nil {
			return err
		}
		spent, uncached = spent+cached, uncached+plain
	}
	fmt.Fprintf(env.Stdout, "\nprompt caching: the demo cost $%s, without it $%s\n", spent, uncached)
	return failed
}

// withoutCache is what a run cost, and what it would have cost if the provider
// had read every token anew.
func withoutCache(run *loopdv1.Run) (cached, plain loop.USD, err error) {
	book, err := pricing.Bundled()
	if err != nil {
		return 0, 0, err
	}
	price, err := book.Price("scripted/demo")
	if err != nil {
		return 0, 0, err
	}
	if err := cached.UnmarshalText([]byte(run.GetCostUsd())); err != nil {
		return 0, 0, fmt.Errorf("cost of %s: %w", run.GetName(), err)
	}
	u := run.GetUsage()
	input := u.GetInputUncachedTokens() + u.GetCacheReadTokens() + u.GetCacheWriteTokens()
	return cached, price.Cost(loop.Usage{InputUncached: input, Output: u.GetOutputTokens(), Reasoning: u.GetReasoningTokens()}).Total(), nil
}

// sayHow prints one line for an ended run, the evidence under a stopped one,
// checks that it ended as the demo says.
func sayHow(env Env, s demo.Scenario, run *loopdv1.Run) error {
	mark := map[loopdv1.RunState]string{
		loopdv1.RunState_RUN_STATE_SUCCEEDED: "✓", loopdv1.RunState_RUN_STATE_STOPPED: "■", loopdv1.RunState_RUN_STATE_FAILED: "✗",
	}[run.GetState()]
	stop := run.GetStop()
	reason := word(stop.GetReason(), "STOP_REASON_")
	fmt.Fprintf(env.Stdout, "%s %s  %-9s  %2d it  $%-9s  %-14s → loopd run show %s\n    %s: %s\n", mark, strings.TrimPrefix(run.GetName(), "runs/"),
		strings.ToLower(stateOf(run)), run.GetIterations(), run.GetCostUsd(), reason, run.GetName(), s.Title, stop.GetMessage())
	for _, e := range stop.GetEvidence() {
		fmt.Fprintf(env.Stdout, "      iteration %d  %s %s  args %s  result %s  %s\n", e.GetIteration(), e.GetTool(), e.GetArguments(), e.GetArgumentsHash(), e.GetResultHash(), cut(oneLine(e.GetResult()), 60))
	}
	if run.GetState() != s.State || stop.GetReason() != s.Reason || run.GetIterations() != s.Iterations {
		return fmt.Errorf("%w: %s (%s) should be %s by %s after %d iterations", errDemo, run.GetName(), s.Title,
			word(s.State, "RUN_STATE_"), word(s.Reason, "STOP_REASON_"), s.Iterations)
	}
	return nil
}
