package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// benchBed is a whole loopd on a fresh Postgres, with a model beside it that answers after
// a time, and an agent that asks it once.
type benchBed struct {
	d     *daemon
	peer  *benchPeer
	runs  loopdv1.RunServiceClient
	agent string
	next  atomic.Int64
}

// onBenchBed starts one, and ends it when do returns. change gets its configuration.
func onBenchBed(ctx context.Context, env Env, latency time.Duration, change func(*config), do func(ctx context.Context, b *benchBed) error) error {
	set := benchSetting{iterations: 1}
	o := benchOptions{concurrency: []int{1}, iterations: []int{set.iterations}, latency: latency, binDir: env.Getenv("LOOPD_PG_BINDIR")}
	stop, err := o.openDatabase(ctx)
	if err != nil {
		return err
	}
	defer stop()
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the model: %w", err)
	}
	b := &benchBed{peer: newBenchPeer(set.iterations, o.latency)}
	o.askAt(lis)
	c := o.config(set, env)
	c.drainGrace = 100 * time.Millisecond
	change(&c)
	if b.d, err = newDaemon(ctx, c, env); err != nil {
		return err
	}
	b.d.beside = servePeer(lis, b.peer)
	return b.d.run(ctx, func(ctx context.Context) error {
		conn, err := grpc.NewClient(b.d.grpcLis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer conn.Close() //nolint:errcheck // nothing left to say
		agent, err := benchAgent(o, set)
		if err != nil {
			return err
		}
		if _, err := loopdv1.NewAgentServiceClient(conn).UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: agent, AllowMissing: true}); err != nil {
			return fmt.Errorf("register %s: %w", agent.GetName(), err)
		}
		b.runs, b.agent = loopdv1.NewRunServiceClient(conn), agent.GetName()
		return do(ctx, b)
	})
}

// create creates a run over the API; seen has the model note when it is called for it.
func (b *benchBed) create(ctx context.Context, seen bool) (*loopdv1.Run, error) {
	id := strconv.FormatInt(b.next.Add(1), 10)
	if seen {
		b.peer.expect(id)
	}
	return b.runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: b.agent, Input: "run=" + id + " find what the order needs", RequestId: "bench-" + id})
}

// durations are collected by many at once.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, t)
}

// take returns what was collected since it was last asked.
func (d *durations) take() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}
