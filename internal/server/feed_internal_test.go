package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// written is a sink that keeps what it is given.
type written struct {
	got  []string
	read func() // called for each event; may be nil
}

func (w *written) event(e *entry) error {
	w.got = append(w.got, fmt.Sprint(e.event.GetSeq()))
	if w.read != nil {
		w.read()
	}
	return nil
}
func (w *written) delta(*loopdv1.Delta) error { return nil }
func (w *written) heartbeat() error           { return nil }
func (w *written) end(s loop.RunState) error  { w.got = append(w.got, string(s)); return nil }
func (w *written) flush() error               { return nil }

// feedWorld is a server without doors, and a run whose worker is the test.
type feedWorld struct {
	t        *testing.T
	s        *Server
	registry *prometheus.Registry
	run      loop.RunRef
	lease    loop.Lease
	state    *loop.State
}

func newFeedWorld(t *testing.T) *feedWorld {
	t.Helper()
	w := &feedWorld{t: t, registry: prometheus.NewRegistry(), run: loop.RunRef{Tenant: "default", ID: uuid.Must(uuid.NewV7()).String()}}
	store, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.URL(t), Registerer: w.registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	metrics, err := newMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.s = &Server{store: store, metrics: metrics, hub: newHub(), feeds: newFeeds(store), taps: newTaps(), heartbeat: time.Hour, draining: make(chan struct{})}
	spec := loop.Spec{Agent: "agents/support", AgentVersion: 1, Input: "Hi.", Limits: loop.Defaults()}
	if _, _, err := store.CreateRun(t.Context(), w.run, spec, postgres.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if err := store.Renew(t.Context(), "w1", time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := store.Claim(t.Context(), "w1", 1)
	if err != nil || len(leases) != 1 {
		t.Fatalf("claimed %v, %v", leases, err)
	}
	events, err := store.Events(t.Context(), w.run, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	w.lease = leases[0]
	if w.state, err = loop.Fold(w.run, events); err != nil {
		t.Fatal(err)
	}
	w.append(loop.Claimed{Attempt: 1, Worker: "w1"})
	return w
}

func (w *feedWorld) append(bodies ...loop.Body) {
	w.t.Helper()
	var batch postgres.Batch
	for _, body := range bodies {
		e := loop.Event{Seq: w.state.Seq() + 1, At: time.Now().UTC(), Epoch: w.lease.Epoch, Body: body}
		if err := w.state.Apply(e); err != nil {
			w.t.Fatal(err)
		}
		batch.Events = append(batch.Events, e)
		_, batch.Release = body.(loop.Finished)
	}
	batch.Head = w.state.Head()
	if err := w.s.store.Append(w.t.Context(), w.lease, batch); err != nil {
		w.t.Fatal(err)
	}
}

func (w *feedWorld) finish() {
	w.append(loop.Finished{State: loop.StateFailed, Stop: loop.Stop{Reason: loop.InternalError, Message: "Enough."}})
}

// reads is how often events were read.
func (w *feedWorld) reads() (n uint64) {
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "loopd_db_query_duration_seconds" && label.GetValue() == "ListEvents" {
					n += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return n
}

// Many readers of a run are one reader of the database; and no notice has to arrive: there
// is no listener here, only the poll.
func TestFollowersOfARunShareWhatIsRead(t *testing.T) {
	t.Parallel()
	w := newFeedWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := w.reads()
	const many = 40
	var wg, ready sync.WaitGroup
	sinks := make([]*written, many)
	ready.Add(many)
	for i := range sinks {
		var once sync.Once
		sinks[i] = &written{read: func() { once.Do(ready.Done) }}
		wg.Go(func() {
			if err := w.s.follow(ctx, &loopdv1.StreamEventsRequest{Parent: runName(w.run.ID)}, sinks[i]); err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait() // each has the first event
	atStart := w.reads() - before
	var polls sync.WaitGroup
	polls.Go(func() { _ = w.s.poll(ctx) })
	w.append(loop.RateWaited{Provider: "acme"}, loop.RateWaited{Provider: "acme"})
	w.finish()
	wg.Wait()
	cancel()
	polls.Wait()

	for i, sink := range sinks {
		if diff := cmp.Diff([]string{"1", "2", "3", "4", "5", "FAILED"}, sink.got); diff != "" {
			t.Errorf("follower %d got (-want +got):\n%s", i, diff)
		}
	}
	if later := w.reads() - before - atStart; atStart > 2 || later > 4 {
		t.Errorf("%d followers read %d times when they came, and %d times later", many, atStart, later)
	}
	if len(w.s.feeds.open) != 0 || w.s.feeds.kept.Load() != 0 {
		t.Errorf("when all have gone %d feeds with %d bytes are left", len(w.s.feeds.open), w.s.feeds.kept.Load())
	}
}

// Who waits for a run hears of its end also if the notice of it got lost: one query asks
// for all who wait.
func TestThePollEndsWaits(t *testing.T) {
	t.Parallel()
	w := newFeedWorld(t)
	woken, leave := w.s.hub.subscribe(w.run)
	defer leave()
	again, leaveAgain := w.s.hub.subscribe(w.run)
	defer leaveAgain()
	if diff := cmp.Diff([]loop.RunRef{w.run}, w.s.hub.runs()); diff != "" {
		t.Errorf("waited for (-want +got):\n%s", diff)
	}
	for _, want := range []int{0, 1} {
		if err := w.s.hub.look(t.Context(), w.s.store); err != nil {
			t.Fatal(err)
		}
		expectWakes(t, "after a look", map[string]int{"one": len(woken), "other": len(again)}, map[string]int{"one": want, "other": want})
		if want == 0 {
			w.finish()
		}
	}
}

// Who comes late, and finds that what he missed is not kept, reads it for himself.
func TestALateFollowerCatchesUp(t *testing.T) {
	t.Parallel()
	w := newFeedWorld(t)
	w.s.feeds.kept.Store(2 * feedsWindow) // no feed keeps more than it read last
	early, leave, err := w.s.feeds.join(w.run)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for range 3 {
		w.append(loop.RateWaited{Provider: strings.Repeat("x", 1000)})
		if err := early.read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, behind := early.after(0); !behind {
		t.Fatal("everything is kept: the test would prove nothing")
	}
	w.finish()
	for after, want := range map[int64][]string{0: {"1", "2", "3", "4", "5", "6", "FAILED"}, 3: {"4", "5", "6", "FAILED"}, 6: {"FAILED"}} {
		early.tell()
		sink := &written{}
		if err := w.s.follow(t.Context(), &loopdv1.StreamEventsRequest{Parent: runName(w.run.ID), AfterSeq: after}, sink); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, sink.got); diff != "" {
			t.Errorf("behind event %d (-want +got):\n%s", after, diff)
		}
	}
}

// Reads are shed before creates, and what people say to runs never is.
func TestShedding(t *testing.T) {
	t.Parallel()
	const (
		create = loopdv1.RunService_CreateRun_FullMethodName
		list   = loopdv1.RunService_ListRuns_FullMethodName
		stream = loopdv1.RunService_StreamEvents_FullMethodName
		cancel = loopdv1.RunService_CancelRun_FullMethodName
		health = "/grpc.health.v1.Health/Check"
	)
	for _, test := range []struct {
		name                 string
		wait, asking, queued time.Duration
		limits               Shed
		refused              []string
	}{
		{"idle", 0, 0, 0, Shed{}, nil},
		{"the database is slow", 600 * time.Millisecond, 0, 0, Shed{}, []string{list, stream}},
		{"the database is overloaded", 1100 * time.Millisecond, 0, 0, Shed{}, []string{create, list, stream}},
		{"nobody got a connection yet", 0, 3 * time.Second, 0, Shed{}, []string{create, list, stream}},
		{"too few workers", 0, 0, 31 * time.Second, Shed{}, []string{create}},
		{"the operator waits longer", 0, 0, 31 * time.Second, Shed{QueueAge: time.Minute}, nil},
		{"the operator sheds nothing", time.Hour, 0, time.Hour, Shed{QueueAge: -1, PoolWait: -1}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, err := newMetrics(prometheus.NewRegistry(), nil)
			if err != nil {
				t.Fatal(err)
			}
			g := newGate(test.limits, m.shed)
			g.poolWait.Store(int64(test.wait))
			g.queueAge.Store(int64(test.queued))
			if test.asking > 0 {
				g.asking.Store(time.Now().Add(-test.asking).UnixNano())
			}
			var refused []string
			for _, method := range []string{create, list, stream, cancel, health} {
				err := g.admit(method)
				if err == nil {
					continue
				}
				refused = append(refused, method)
				if r := classify(err); r == nil || r.reason != loopdv1.ErrorReason_ERROR_REASON_OVERLOADED || r.retry < time.Second {
					t.Errorf("%s: %v", method, err)
				}
			}
			if diff := cmp.Diff(test.refused, refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

// A tenant with too many waiting runs is told so, without a question to the database for
// each of its requests.
func TestATenantsQueueIsBounded(t *testing.T) {
	t.Parallel()
	w := newFeedWorld(t)
	w.s.gate = newGate(Shed{TenantQueue: 1}, w.s.metrics.shed)
	if err := w.s.admitTenant(t.Context()); err != nil {
		t.Fatalf("with an empty queue: %v", err)
	}
	ref := loop.RunRef{Tenant: "default", ID: uuid.Must(uuid.NewV7()).String()}
	if _, _, err := w.s.store.CreateRun(t.Context(), ref, loop.Spec{Agent: "agents/support", Limits: loop.Defaults()}, postgres.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	clear(w.s.gate.queues)
	err := w.s.admitTenant(t.Context())
	if r := classify(err); r == nil || r.reason != loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL || r.retry == 0 {
		t.Errorf("a new request: %v", err)
	}
}

// Between two looks at the database a tenant's runs are counted as they are let in, so that
// a burst does not get past its bound.
func TestATenantsBurstIsCounted(t *testing.T) {
	t.Parallel()
	w := newFeedWorld(t)
	w.s.gate = newGate(Shed{TenantQueue: 3}, w.s.metrics.shed)
	w.s.gate.queues["default"] = tenantQueue{at: time.Now().Add(time.Hour)} // just looked
	for range 3 {
		if err := w.s.admitTenant(t.Context()); err != nil {
			t.Fatalf("there is room: %v", err)
		}
	}
	err := w.s.admitTenant(t.Context())
	if r := classify(err); r == nil || r.reason != loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL {
		t.Errorf("one more than may wait: %v", err)
	}
}
