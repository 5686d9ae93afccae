package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/postgres"
)

// Shed says under which load requests are refused, so that what was accepted is done.
// Reads go first, since they can be repeated; then new runs. What people say to runs that
// exist, and the renewals of workers, is never refused.
type Shed struct {
	// QueueAge is how long runs may wait for a worker before new ones are refused.
	// Default 30 s; negative: however long.
	QueueAge time.Duration
	// PoolWait is how long one may wait for a connection to the database before new runs
	// are refused; reads are from half of it. Default 1 s; negative: however long.
	PoolWait time.Duration
	// TenantQueue is how many runs of one tenant may wait for a worker. 0: any number.
	TenantQueue int
	// TenantCreates is how many runs of one tenant are made a second. More wait for up to a
	// second, and are refused beyond. 0: any number.
	TenantCreates int
}

const (
	// loadEvery is how often the load is measured: often enough that a minute's worth of
	// runs is not accepted unseen, too seldom to be a load itself.
	loadEvery = 500 * time.Millisecond
	// loadPatience bounds one measurement.
	loadPatience = 10 * time.Second
	// tenantQueueAge is how long the length of a tenant's queue is believed.
	tenantQueueAge = 200 * time.Millisecond
)

// What may be shed, and why, as labels.
const (
	shedCreate = "create"
	shedRead   = "read"

	shedQueueAge    = "queue_age"
	shedPoolWait    = "pool_wait"
	shedTenantQueue = "tenant_queue"
)

// gate refuses requests under load.
type gate struct {
	limits Shed
	calls  map[string]string // what is shed, by full method
	shed   *prometheus.CounterVec

	queueAge atomic.Int64 // nanoseconds, when it was last measured
	poolWait atomic.Int64
	lastWait time.Duration // as it was measured; of watchLoad alone
	asking   atomic.Int64  // Unix nanoseconds since when a connection is waited for; 0: none is

	mu     sync.Mutex
	queues map[string]tenantQueue
	lines  map[string]*line // by tenant
}

// tenantQueue is the length of a tenant's queue at a time.
type tenantQueue struct {
	runs int
	at   time.Time
}

func newGate(limits Shed, shed *prometheus.CounterVec) *gate {
	if limits.QueueAge == 0 {
		limits.QueueAge = 30 * time.Second
	}
	if limits.PoolWait == 0 {
		limits.PoolWait = time.Second
	}
	for _, label := range [][2]string{{shedCreate, shedQueueAge}, {shedCreate, shedPoolWait}, {shedCreate, shedTenantQueue}, {shedRead, shedPoolWait}} {
		shed.WithLabelValues(label[0], label[1]) // a rate needs the zero before the first
	}
	return &gate{limits: limits, calls: sheddable(), shed: shed, queues: make(map[string]tenantQueue), lines: make(map[string]*line)}
}

// sheddable are the methods that may be refused: those that only read, which REST calls
// with GET, and the one that makes runs.
func sheddable() map[string]string {
	calls := map[string]string{loopdv1.RunService_CreateRun_FullMethodName: shedCreate}
	for _, service := range services() {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
			if rule.GetGet() != "" {
				calls[fmt.Sprintf("/%s/%s", service.FullName(), method.Name())] = shedRead
			}
		}
	}
	return calls
}

// admit refuses a call that the load leaves no room for.
func (g *gate) admit(method string) error {
	call := g.calls[method]
	if call == "" {
		return nil
	}
	wait, most := g.wait(time.Now()), g.limits.PoolWait
	if call == shedRead {
		most /= 2
	}
	if most > 0 && wait > most {
		return g.refuse(call, shedPoolWait, time.Second, fmt.Sprintf("requests wait %s for the database, and more than %s is too long", wait.Round(time.Millisecond), most))
	}
	age, most := time.Duration(g.queueAge.Load()), g.limits.QueueAge
	if call == shedCreate && most > 0 && age > most {
		return g.refuse(call, shedQueueAge, most/4, fmt.Sprintf("runs wait %s for a worker, and more than %s is too long: add workers, or wait", age.Round(time.Second), most))
	}
	return nil
}

// wait is how long one waits for a connection now: the shorter of the last two waits, since
// one that had to connect first says little. So one that still waits counts half.
func (g *gate) wait(now time.Time) time.Duration {
	wait := time.Duration(g.poolWait.Load())
	if since := g.asking.Load(); since > 0 {
		wait = max(wait, now.Sub(time.Unix(0, since))/2)
	}
	return wait
}

func (g *gate) refuse(call, why string, retry time.Duration, detail string) error {
	g.shed.WithLabelValues(call, why).Inc()
	r := refuse(loopdv1.ErrorReason_ERROR_REASON_OVERLOADED, detail, "why", why)
	r.retry = max(retry, time.Second)
	return r
}

// admitTenant refuses a run of a tenant that has too many waiting, and counts it as one of
// them if there is room. It asks the database a few times a second only, so that a refusal
// costs next to nothing. A request that was answered before is refused as well, and brings
// the same answer later.
func (s *Server) admitTenant(ctx context.Context) error { return s.tenantRoom(ctx, true) }

// tenantRoom refuses a run of a tenant that has too many waiting; enters counts it.
func (s *Server) tenantRoom(ctx context.Context, enters bool) error {
	most := s.gate.limits.TenantQueue
	if most <= 0 {
		return nil
	}
	waiting, err := s.gate.queue(ctx, s.store, tenant(ctx), enters)
	if err != nil || waiting < most {
		return err
	}
	s.metrics.shed.WithLabelValues(shedCreate, shedTenantQueue).Inc()
	r := refuse(loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL,
		fmt.Sprintf("%d runs of this tenant wait for a worker, and no more may: try again when some of them have begun", most), "limit", fmt.Sprint(most))
	r.retry = time.Second
	return r
}

// queue is how many runs of a tenant wait, up to the limit: as many as the database said
// a little ago at most, and those that came since. enters adds one, if there is room.
func (g *gate) queue(ctx context.Context, store *postgres.Store, who string, enters bool) (int, error) {
	g.mu.Lock()
	known := g.queues[who]
	fresh := time.Since(known.at) < tenantQueueAge
	if !fresh {
		g.queues[who] = tenantQueue{runs: known.runs, at: time.Now()} // one asks, the others believe the last answer
	}
	if fresh && enters && known.runs < g.limits.TenantQueue {
		g.queues[who] = tenantQueue{runs: known.runs + 1, at: known.at}
	}
	g.mu.Unlock()
	if fresh {
		return known.runs, nil
	}
	runs, err := store.QueuedRuns(ctx, who, g.limits.TenantQueue)
	if err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues[who] = tenantQueue{runs: runs, at: time.Now()}
	if enters && runs < g.limits.TenantQueue {
		g.queues[who] = tenantQueue{runs: runs + 1, at: time.Now()}
	}
	return runs, nil
}

// watchLoad measures the load until ctx ends.
func (s *Server) watchLoad(ctx context.Context) error {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.gate.measure(ctx, s.store)
		}
	}
}

// measure asks the database as a request would. If it does not answer, nothing is refused
// here: requests find out for themselves.
func (g *gate) measure(ctx context.Context, store *postgres.Store) {
	ctx, cancel := context.WithTimeout(ctx, loadPatience)
	defer cancel()
	g.asking.Store(time.Now().UnixNano())
	load, err := store.Pressure(ctx)
	g.asking.Store(0)
	if err != nil {
		load = postgres.Pressure{}
	}
	g.poolWait.Store(int64(min(load.PoolWait, g.lastWait)))
	g.lastWait = load.PoolWait
	g.queueAge.Store(int64(load.QueueAge))
}

// services are those of the API.
func services() []protoreflect.ServiceDescriptor {
	var all []protoreflect.ServiceDescriptor
	for _, file := range apiFiles() {
		for i := range file.Services().Len() {
			all = append(all, file.Services().Get(i))
		}
	}
	return all
}
