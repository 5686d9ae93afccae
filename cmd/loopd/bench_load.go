package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// errBench: a run of the benchmark did not end as it should.
var errBench = errors.New("the benchmark did not go as it should")

// A load before the first measurement fills caches and pools: Postgres plans a statement
// anew for its first five uses on each connection, which takes longer than its uses.
const (
	warmUpIterations  = 2000
	warmUpRuns        = 20 // at least
	warmUpConcurrency = 64 // at most
)

// benchTokens is more than any run of the benchmark uses.
const benchTokens = 900_000_000

// benchClient creates runs and waits for them, as a program over the API would.
type benchClient struct {
	o     benchOptions
	set   benchSetting
	peer  *benchPeer
	runs  loopdv1.RunServiceClient
	agent string
	meter *benchMeter
	next  atomic.Int64
}

// measure registers the agent, warms up, and measures row after row, in turns.
func (o *benchOptions) measure(ctx context.Context, set benchSetting, server string, peer *benchPeer) ([]benchCell, error) {
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}
	defer conn.Close() //nolint:errcheck // nothing left to say
	agent, err := benchAgent(*o, set)
	if err != nil {
		return nil, err
	}
	if _, err := loopdv1.NewAgentServiceClient(conn).UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: agent, AllowMissing: true}); err != nil {
		return nil, fmt.Errorf("register %s: %w", agent.GetName(), err)
	}
	meter, err := newBenchMeter(ctx, o.databaseURL)
	if err != nil {
		return nil, err
	}
	defer meter.close(ctx)
	b := &benchClient{o: *o, set: set, peer: peer, runs: loopdv1.NewRunServiceClient(conn), agent: agent.GetName(), meter: meter}
	if err := b.warmUp(ctx, slices.Max(o.concurrency), 1); err != nil {
		return nil, err
	}
	kinds := []func(context.Context, int) (benchCell, error){b.row}
	if set.floor {
		kinds = append(kinds, b.floor)
	}
	cells := make([][]benchCell, len(kinds)*len(o.concurrency))
	err = o.profile(func() error {
		for range o.repeat {
			for i, concurrency := range o.concurrency {
				for k, measure := range kinds {
					cell, err := measure(ctx, concurrency)
					if err != nil {
						return err
					}
					at := i*len(kinds) + k
					cells[at] = append(cells[at], cell)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rows := make([]benchCell, len(cells))
	for i, repeated := range cells {
		rows[i] = benchMedians(repeated)
	}
	return rows, nil
}

// warmUp puts on the load that each of so many replicas needs before it is measured.
func (b *benchClient) warmUp(ctx context.Context, concurrency, replicas int) error {
	runs := max(warmUpRuns, warmUpIterations/b.set.iterations)
	_, err := b.load(ctx, min(warmUpConcurrency, concurrency), runs*replicas, 0)
	return err
}

// row measures once at one concurrency.
func (b *benchClient) row(ctx context.Context, concurrency int) (benchCell, error) {
	cell, creates, err := b.metered(ctx, concurrency, func() (runs int, creates []time.Duration, err error) {
		creates, err = b.load(ctx, concurrency, b.o.runs, b.o.duration)
		return len(creates), creates, err
	})
	cell.System = "loopd"
	if b.set.group > 0 {
		cell.System = fmt.Sprintf("loopd, groups of %d", b.set.group)
	}
	cell.CreateP50, cell.CreateP99 = percentiles(creates)
	return cell, err
}

// metered reads what a load costs that somebody puts on.
func (b *benchClient) metered(ctx context.Context, concurrency int, load func() (int, []time.Duration, error)) (benchCell, []time.Duration, error) {
	b.peer.take()
	before, err := b.meter.read(ctx)
	if err != nil {
		return benchCell{}, nil, err
	}
	memory := watchMemory()
	began := time.Now()
	runs, creates, err := load()
	took := time.Since(began)
	grown := memory.stop()
	if err != nil {
		return benchCell{}, nil, err
	}
	after, err := b.meter.read(ctx)
	if err != nil {
		return benchCell{}, nil, err
	}
	cell := after.since(before, runs, runs*b.set.iterations)
	cell.Concurrency, cell.Iterations = concurrency, b.set.iterations
	cell.IterationsPerSecond = float64(runs*b.set.iterations) / took.Seconds()
	cell.MemoryPerRun = float64(grown) / float64(concurrency)
	gaps, starts := b.peer.take()
	cell.OverheadP50, cell.OverheadP99 = percentiles(gaps)
	cell.StartP50, cell.StartP99 = percentiles(starts)
	return cell, creates, nil
}

// load keeps so many runs in flight until the number of runs is reached or the time is
// over; 0 is no bound. It returns how long each create took, once all runs have ended.
func (b *benchClient) load(ctx context.Context, concurrency, runs int, most time.Duration) ([]time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	var begun atomic.Int64
	var mu sync.Mutex
	var creates []time.Duration
	for range concurrency {
		group.Go(func() error {
			for {
				if most > 0 && time.Since(began) > most || begun.Add(1) > int64(runs) && runs > 0 {
					return nil
				}
				create, err := b.one(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				creates = append(creates, create)
				mu.Unlock()
			}
		})
	}
	err := group.Wait()
	return creates, err
}

// one creates a run and waits for its end.
func (b *benchClient) one(ctx context.Context) (create time.Duration, err error) {
	id := strconv.FormatInt(b.next.Add(1), 10)
	b.peer.expect(id)
	began := time.Now()
	run, err := b.runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: b.agent, Input: "run=" + id + " find what the order needs"})
	if err != nil {
		return 0, fmt.Errorf("create a run: %w", err)
	}
	create = time.Since(began)
	for run.GetEndTime() == nil {
		if run, err = b.runs.WaitRun(ctx, &loopdv1.WaitRunRequest{Name: run.GetName(), Timeout: durationpb.New(10 * time.Minute)}); err != nil {
			return 0, fmt.Errorf("wait for a run: %w", err)
		}
	}
	if run.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || run.GetIterations() != int32(b.set.iterations) {
		return 0, fmt.Errorf("%w: %s ended as %s after %d iterations: %s", errBench, run.GetName(), run.GetState(), run.GetIterations(), run.GetStop().GetMessage())
	}
	return create, nil
}

// benchAgent is as large as a small agent is: 2 KB of instructions and one tool.
func benchAgent(o benchOptions, set benchSetting) (*loopdv1.Agent, error) {
	schema, err := structpb.NewStruct(map[string]any{
		"type": "object", "required": []any{"run", "step", "query"},
		"properties": map[string]any{"run": map[string]any{"type": "string"}, "step": map[string]any{"type": "integer"}, "query": map[string]any{"type": "string"}},
	})
	if err != nil {
		return nil, fmt.Errorf("the schema of the benchmark's tool: %w", err)
	}
	instructions := "You are an agent. " + strings.Repeat("Answer from the tool results only and stop when done. ", 36)
	return &loopdv1.Agent{
		Name: "agents/bench", DisplayName: "Bench",
		Spec: &loopdv1.AgentSpec{
			Model: "openai/gpt-4.1-mini", Instructions: instructions,
			Limits: &loopdv1.Limits{
				MaxIterations: new(int32(set.iterations) + 1), MaxModelCalls: new(int32(set.iterations) + 1),
				MaxToolCalls: new(int32(set.iterations)), MaxTotalTokens: new(int64(benchTokens)), MaxOutputTokens: new(int64(1_000_000)), MaxCostUsd: new("50"),
			},
			Tools: []*loopdv1.Tool{{
				Name: "lookup", Description: "Look a thing up", InputSchema: schema, Effect: loopdv1.Effect_EFFECT_READ_ONLY,
				Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: o.toolURL}},
			}},
		},
	}, nil
}
