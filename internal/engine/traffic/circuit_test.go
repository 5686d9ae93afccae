package traffic

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// fail makes n calls that end with the class.
func fail(t *testing.T, l *Lane, n int, class loop.ErrorClass) {
	t.Helper()
	for range n {
		call(t, l, class)
	}
}

// TestClasses holds the table of the package comment.
func TestClasses(t *testing.T) {
	for class, want := range map[loop.ErrorClass]struct{ one, five, probe string }{
		"":                   {closed, closed, closed},
		loop.ErrorServer:     {closed, open, open},
		loop.ErrorTimeout:    {closed, open, open},
		loop.ErrorMidStream:  {closed, open, open},
		loop.ErrorNotStarted: {closed, open, open},
		loop.ErrorQuota:      {open, open, open},
		loop.ErrorThrottle:   {closed, closed, closed},
		loop.ErrorRequest:    {closed, closed, closed},
		loop.ErrorContext:    {closed, closed, closed},
		loop.ErrorAuth:       {closed, closed, closed},
		loop.ErrorTextLoop:   {closed, closed, closed},
		loop.ErrorCancelled:  {closed, closed, halfOpen},
		loop.ErrorInternal:   {closed, closed, halfOpen},
		loop.ErrorLost:       {closed, closed, halfOpen},
	} {
		t.Run("class "+string(class), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(Limits{})
				call(t, l, class)
				if l.State() != want.one {
					t.Errorf("after one the circuit is %s; want %s", l.State(), want.one)
				}
				for range 4 {
					ticket := l.Enter(1)
					<-ticket.Ready()
					ticket.Leave(End{Sent: ticket.Refusal() == nil, Class: class})
				}
				if l.State() != want.five {
					t.Errorf("after five the circuit is %s; want %s", l.State(), want.five)
				}

				l = NewLane(Limits{})
				fail(t, l, 5, loop.ErrorServer)
				time.Sleep(firstPause)
				call(t, l, class)
				if l.State() != want.probe {
					t.Errorf("after the probe the circuit is %s; want %s", l.State(), want.probe)
				}
			})
		})
	}
}

func TestTrip(t *testing.T) {
	for name, tc := range map[string]struct {
		run  func(t *testing.T, l *Lane)
		want string
	}{
		"four failures": {func(t *testing.T, l *Lane) {
			fail(t, l, 4, loop.ErrorServer)
		}, closed},
		"five in a minute": {func(t *testing.T, l *Lane) {
			for range 5 {
				call(t, l, loop.ErrorServer)
				time.Sleep(15 * time.Second)
			}
		}, open},
		"five in more than a minute": {func(t *testing.T, l *Lane) {
			for range 20 {
				call(t, l, loop.ErrorServer)
				time.Sleep(15*time.Second + time.Millisecond)
			}
		}, closed},
		"five answers between them": {func(t *testing.T, l *Lane) {
			call(t, l, loop.ErrorServer)
			call(t, l, "")
			for range 4 {
				call(t, l, "")
				call(t, l, loop.ErrorServer)
			}
		}, open},
		"six answers between them": {func(t *testing.T, l *Lane) {
			call(t, l, loop.ErrorServer)
			fail(t, l, 2, "")
			for range 4 {
				call(t, l, "")
				call(t, l, loop.ErrorServer)
			}
		}, closed},
		"many answers before": {func(t *testing.T, l *Lane) {
			fail(t, l, 1000, "")
			fail(t, l, 5, loop.ErrorTimeout)
		}, open},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(Limits{})
				tc.run(t, l)
				if l.State() != tc.want {
					t.Errorf("the circuit is %s; want %s", l.State(), tc.want)
				}
			})
		})
	}
}

func TestRefusal(t *testing.T) {
	for name, tc := range map[string]struct {
		failures int
		class    loop.ErrorClass
		want     loop.ModelError
	}{
		"outage": {5, loop.ErrorTimeout, loop.ModelError{
			Class: loop.ErrorNotStarted, Code: "circuit_open", RetryAfter: 20 * time.Second,
			Message: "nothing was sent: too many requests to this provider failed; the last failure was timeout at 2000-01-01T00:00:00Z, the next try is allowed at 2000-01-01T00:00:30Z",
		}},
		"no money": {1, loop.ErrorQuota, loop.ModelError{
			Class: loop.ErrorQuota, Code: "circuit_open", RetryAfter: 290 * time.Second,
			Message: "nothing was sent: the account at this provider has no credit left or reached its spend cap; add credit or raise the cap; the last failure was quota at 2000-01-01T00:00:00Z, the next try is allowed at 2000-01-01T00:05:00Z",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(Limits{Concurrent: 1})
				if e := l.Refusal(); e != nil {
					t.Fatalf("a closed circuit refuses: %v", e)
				}
				fail(t, l, tc.failures, tc.class)
				time.Sleep(10 * time.Second)
				ticket := l.Enter(100)
				<-ticket.Ready() // at once, to be refused
				if diff := cmp.Diff(&tc.want, l.Refusal()); diff != "" {
					t.Errorf("the lane's refusal (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(&tc.want, ticket.Refusal()); diff != "" {
					t.Errorf("the ticket's refusal (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestOpeningEmptiesTheQueue: who waits when the circuit opens is sent away, and
// those that were ready but did not send yet are told as well.
func TestOpeningEmptiesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{Concurrent: 2, RequestsPerMinute: 10})
		tickets, _ := enter(l, 20, 10)
		tickets[0].Leave(End{Sent: true, Class: loop.ErrorQuota})
		for i, ticket := range tickets[1:] {
			if !ready(ticket) || ticket.Refusal() == nil {
				t.Fatalf("ticket %d: ready %t, refusal %v", i+1, ready(ticket), ticket.Refusal())
			}
			ticket.Leave(End{})
		}
		time.Sleep(quotaPause)
		call(t, l, "")
		if _, out := enter(l, 3, 10); out != 1 {
			t.Errorf("%d are out after the circuit closed; want 2 at most, as one answer allows", out)
		}
	})
}

func TestProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{})
		hung, _ := enter(l, 3, 10)
		fail(t, l, 5, loop.ErrorServer)

		// One at a time, and none is lost when its holder gives up.
		time.Sleep(firstPause)
		probes, out := enter(l, 3, 10)
		if out != 1 || l.State() != halfOpen || probes[0].Refusal() != nil {
			t.Fatalf("%d are out, the circuit is %s, the probe's refusal %v", out, l.State(), probes[0].Refusal())
		}
		probes[0].Leave(End{})
		if !ready(probes[1]) || probes[1].Refusal() != nil || ready(probes[2]) {
			t.Fatal("want the next probe ready, and only that")
		}

		// What left before the circuit opened says nothing about now.
		hung[0].Leave(End{Sent: true, Class: loop.ErrorTimeout})
		hung[1].Leave(End{Sent: true})
		if l.State() != halfOpen || ready(probes[2]) {
			t.Fatalf("a late result made the circuit %s", l.State())
		}

		// A probe that fails opens it for twice as long, and sends the rest away.
		probes[1].Leave(End{Sent: true, Class: loop.ErrorServer})
		if e := probes[2].Refusal(); !ready(probes[2]) || e == nil || e.RetryAfter != 2*firstPause {
			t.Fatalf("the one behind a failed probe: ready %t, refusal %v", ready(probes[2]), e)
		}

		// One that is answered closes it; the rest follows slowly.
		time.Sleep(2 * firstPause)
		probes, _ = enter(l, 9, 10)
		var got []int
		for _, probe := range probes[:3] {
			got = append(got, 9-l.Waiting())
			probe.Leave(End{Sent: true})
		}
		if diff := cmp.Diff([]int{1, 2, 4}, got); diff != "" || l.State() != closed {
			t.Errorf("the circuit is %s; how many had left before each answer (-want +got):\n%s", l.State(), diff)
		}
		hung[2].Leave(End{Sent: true, Class: loop.ErrorQuota}) // no money is no money, whenever it was asked for
		if l.State() != open {
			t.Errorf("the circuit is %s after a late quota failure", l.State())
		}
	})
}

func TestPausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pauses := func(l *Lane, class loop.ErrorClass) (all []time.Duration) {
			for range 5 {
				pause := l.Refusal().RetryAfter
				all = append(all, pause)
				time.Sleep(pause - time.Nanosecond)
				if l.State() != open {
					t.Errorf("the circuit is %s before its time", l.State())
				}
				time.Sleep(time.Nanosecond)
				call(t, l, class)
			}
			return all
		}
		l := NewLane(Limits{})
		fail(t, l, 5, loop.ErrorServer)
		want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute}
		if diff := cmp.Diff(want, pauses(l, loop.ErrorTimeout)); diff != "" {
			t.Errorf("pauses of an outage (-want +got):\n%s", diff)
		}
		time.Sleep(longestPause)
		call(t, l, "")
		fail(t, l, 5, loop.ErrorServer)
		if got := l.Refusal().RetryAfter; got != firstPause {
			t.Errorf("a new outage opens for %s; want %s", got, firstPause)
		}

		l = NewLane(Limits{})
		fail(t, l, 1, loop.ErrorQuota)
		want = []time.Duration{quotaPause, quotaPause, quotaPause, quotaPause, quotaPause}
		if diff := cmp.Diff(want, pauses(l, loop.ErrorServer)); diff != "" {
			t.Errorf("pauses of an empty account (-want +got):\n%s", diff)
		}
		if e := l.Refusal(); e.Class != loop.ErrorQuota || !strings.Contains(e.Message, "last failure was server") {
			t.Errorf("an outage hides that nobody has paid: %v", e)
		}
		time.Sleep(quotaPause)
		call(t, l, loop.ErrorRequest) // says nothing about the money
		if l.State() != halfOpen {
			t.Errorf("the circuit is %s; only an answer shows that somebody has paid", l.State())
		}
	})
}

// TestRefusalsCostNoRetries: those that the circuit refuses must not use up what
// the provider's recovery will need.
func TestRefusalsCostNoRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{})
		fail(t, l, 5, loop.ErrorServer)
		for range 1000 {
			if !l.TakeRetry(loop.ErrorNotStarted) {
				t.Fatal("a refusal cost retry tokens")
			}
		}
		time.Sleep(firstPause)
		call(t, l, "")
		if !l.TakeRetry(loop.ErrorServer) {
			t.Error("no retry tokens are left after the outage")
		}
	})
}
