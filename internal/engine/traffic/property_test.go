package traffic

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/loop"
)

// request is one call of the plan of a run.
type request struct {
	Pause   time.Duration // before it
	Tokens  int64
	Patient time.Duration // gives up if it is not ready by then; 0: never
	Lasts   time.Duration
	End     End
}

var requests = rapid.Custom(func(t *rapid.T) request {
	seconds := func(most int64, label string) time.Duration {
		return time.Duration(rapid.Int64Range(0, most*1000).Draw(t, label)) * time.Millisecond
	}
	r := request{
		Pause:  seconds(20, "pause"),
		Tokens: rapid.Int64Range(1, 1000).Draw(t, "tokens"),
		Lasts:  seconds(30, "lasts"),
		End:    End{Sent: rapid.IntRange(0, 9).Draw(t, "sent") > 0},
	}
	if rapid.IntRange(0, 3).Draw(t, "patience") == 0 {
		r.Patient = 1 + seconds(30, "patient")
	}
	r.End.Class = rapid.SampledFrom([]loop.ErrorClass{"", "", "", "", "", "", loop.ErrorThrottle, loop.ErrorServer, loop.ErrorCancelled}).Draw(t, "class")
	if r.End.Class == loop.ErrorThrottle {
		r.End.RetryAfter = seconds(10, "retry after")
		if rapid.Bool().Draw(t, "reported") {
			r.End.Rate.Requests = loop.RateWindow{Limit: 30, Remaining: rapid.Int64Range(0, 30).Draw(t, "remaining")}
		}
	}
	return r
})

// world drives the plans and watches what is out.
type world struct {
	lane   *Lane
	limits Limits

	mu    sync.Mutex
	out   int
	sent  []departure
	fault string
}

type departure struct {
	at     time.Time
	tokens float64
}

func (w *world) complainf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

func (w *world) run(plan []request) {
	for _, r := range plan {
		time.Sleep(r.Pause)
		ticket := w.lane.Enter(r.Tokens)
		patience := r.Patient
		if patience == 0 {
			patience = 24 * time.Hour
		}
		select {
		case <-ticket.Ready():
		case <-time.After(patience):
			if r.Patient == 0 {
				w.complainf("a ticket was never ready")
			}
			ticket.Leave(End{})
			continue
		}
		if ticket.Refusal() != nil {
			ticket.Leave(End{})
			continue
		}
		w.send(ticket, r)
	}
}

func (w *world) send(ticket *Ticket, r request) {
	w.mu.Lock()
	w.out++
	if w.out > w.limits.Concurrent && w.fault == "" {
		w.fault = fmt.Sprintf("%d are out; the limit is %d", w.out, w.limits.Concurrent)
	}
	if r.End.Sent {
		w.sent = append(w.sent, departure{time.Now(), float64(r.Tokens)})
	}
	w.mu.Unlock()
	if r.End.Sent {
		time.Sleep(r.Lasts)
	}
	w.mu.Lock()
	w.out--
	w.mu.Unlock()
	end := r.End
	end.Tokens = r.Tokens // as reserved, so that the limits hold exactly
	if end.Rate.Requests.Limit > 0 {
		end.Rate.Requests.Reset = time.Now().Add(20 * time.Second)
	}
	ticket.Leave(end)
}

// windows compares every span between two departures with what may leave in it.
func (w *world) windows() {
	slices.SortFunc(w.sent, func(a, b departure) int { return a.at.Compare(b.at) })
	for i, first := range w.sent {
		tokens := 0.0
		for j, last := range w.sent[i:] {
			tokens += last.tokens
			span := 1 + last.at.Sub(first.at).Minutes() + 1e-9
			if most := float64(w.limits.RequestsPerMinute) * span; float64(j+1) > most {
				w.complainf("%d requests in %s; at most %g", j+1, last.at.Sub(first.at), most)
			}
			if most := float64(w.limits.TokensPerMinute) * span; tokens > most {
				w.complainf("%g tokens in %s; at most %g", tokens, last.at.Sub(first.at), most)
			}
		}
	}
}

// TestAnyTraffic: whatever the runs do, no more than Concurrent are out, no span
// sees more than the limits allow, and everybody's time comes.
func TestAnyTraffic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limits := Limits{
			RequestsPerMinute: rapid.Int64Range(1, 40).Draw(rt, "requests per minute"),
			TokensPerMinute:   rapid.Int64Range(1000, 10_000).Draw(rt, "tokens per minute"),
			Concurrent:        rapid.IntRange(1, 5).Draw(rt, "concurrent"),
		}
		plans := rapid.SliceOfN(rapid.SliceOfN(requests, 1, 8), 1, 12).Draw(rt, "plans")
		fault := ""
		synctest.Test(t, func(*testing.T) {
			w := &world{lane: NewLane(limits), limits: limits}
			var runs sync.WaitGroup
			for _, plan := range plans {
				runs.Go(func() { w.run(plan) })
			}
			runs.Wait()
			w.windows()
			if n := w.lane.Waiting(); n != 0 || w.lane.out != 0 {
				w.complainf("when all is over %d wait and %d are out", n, w.lane.out)
			}
			fault = w.fault
		})
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

// TestManyAtOnce lets real goroutines fight for few places: for the race
// detector, and for wake-ups that get lost.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const concurrent = 3
	l := NewLane(Limits{Concurrent: concurrent, RequestsPerMinute: 60_000_000})
	places := make(chan struct{}, concurrent)
	var runs sync.WaitGroup
	for i := range 64 {
		runs.Go(func() {
			for j := range 100 {
				ticket := l.Enter(10)
				if (i+j)%7 == 0 {
					ticket.Leave(End{})
					continue
				}
				<-ticket.Ready()
				select {
				case places <- struct{}{}:
					<-places
				default:
					t.Error("more are out than may be")
				}
				_, _, _ = ticket.Until(), l.State(), l.Waiting()
				ticket.Leave(End{Sent: true, Tokens: 5})
			}
		})
	}
	runs.Wait()
	if l.Waiting() != 0 || l.out != 0 {
		t.Errorf("when all is over %d wait and %d are out", l.Waiting(), l.out)
	}
}

// BenchmarkLane is one request of a run that need not wait.
func BenchmarkLane(b *testing.B) {
	for name, limits := range map[string]Limits{
		"unlimited": {},
		"limited":   {RequestsPerMinute: 1e12, TokensPerMinute: 1e15, Concurrent: 1000},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			l := NewLane(limits)
			for b.Loop() {
				ticket := l.Enter(1000)
				<-ticket.Ready()
				ticket.Leave(End{Sent: true, Tokens: 900})
			}
		})
	}
}

// BenchmarkQueue is one request of a thousand runs that share ten places.
func BenchmarkQueue(b *testing.B) {
	b.ReportAllocs()
	l := NewLane(Limits{Concurrent: 10})
	var line []*Ticket
	for range 1000 {
		line = append(line, l.Enter(1000))
	}
	for i := 0; b.Loop(); i++ {
		first := line[i%len(line)]
		<-first.Ready()
		first.Leave(End{Sent: true, Tokens: 900})
		line[i%len(line)] = l.Enter(1000)
	}
}
