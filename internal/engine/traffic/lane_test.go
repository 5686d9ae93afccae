package traffic

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func ready(t *Ticket) bool {
	select {
	case <-t.Ready():
		return true
	default:
		return false
	}
}

// waits says how long the ticket has to wait for Ready, on virtual time.
func waits(t *Ticket) time.Duration {
	began := time.Now()
	<-t.Ready()
	return time.Since(began)
}

// enter lets n requests in and says which are ready.
func enter(l *Lane, n int, tokens int64) (tickets []*Ticket, out int) {
	for range n {
		ticket := l.Enter(tokens)
		tickets = append(tickets, ticket)
		if ready(ticket) {
			out++
		}
	}
	return tickets, out
}

// call sends one request that ends at once with the class.
func call(t *testing.T, l *Lane, class loop.ErrorClass) {
	t.Helper()
	ticket := l.Enter(100)
	<-ticket.Ready()
	if e := ticket.Refusal(); e != nil {
		t.Fatalf("the request was refused: %v", e)
	}
	ticket.Leave(End{Sent: true, Class: class})
}

func TestUnlimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{})
		if _, out := enter(l, 1000, 1<<40); out != 1000 || l.Waiting() != 0 {
			t.Errorf("%d of 1000 are ready, %d wait: nothing limits them", out, l.Waiting())
		}
	})
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{Concurrent: 2})
		tickets, out := enter(l, 5, 10)
		if out != 2 || l.Waiting() != 3 {
			t.Fatalf("%d ready, %d wait; want 2 and 3", out, l.Waiting())
		}
		if at := tickets[2].Until(); !at.IsZero() {
			t.Errorf("the wait for another request is estimated at %s", at)
		}
		tickets[3].Leave(End{}) // gave up in the queue
		tickets[0].Leave(End{Sent: true})
		tickets[0].Leave(End{Sent: true}) // once too often
		if !ready(tickets[2]) || ready(tickets[3]) || ready(tickets[4]) {
			t.Errorf("after one left: ready %t, %t, %t; want the third alone", ready(tickets[2]), ready(tickets[3]), ready(tickets[4]))
		}
		tickets[1].Leave(End{Sent: true})
		if !ready(tickets[4]) {
			t.Error("the one behind the ticket that gave up was not woken")
		}
	})
}

func TestRequestsPerMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{RequestsPerMinute: 60})
		tickets, out := enter(l, 63, 10)
		if out != 60 {
			t.Fatalf("%d left at once; want the amount of one minute, 60", out)
		}
		if diff := cmp.Diff(time.Now().Add(3*time.Second), tickets[62].Until()); diff != "" {
			t.Errorf("estimate for the third in the queue (-want +got):\n%s", diff)
		}
		var got []time.Duration
		for _, ticket := range tickets[60:] {
			got = append(got, waits(ticket))
		}
		if diff := cmp.Diff([]time.Duration{time.Second, time.Second, time.Second}, got); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
	})
}

// TestGivingUp shows that a ticket that leaves its place unused costs nothing,
// and that a head that leaves lets a smaller one behind it go at once.
func TestGivingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{RequestsPerMinute: 2, TokensPerMinute: 1000})
		first := l.Enter(600)
		large, small := l.Enter(900), l.Enter(400)
		if !ready(first) || ready(large) || ready(small) {
			t.Fatal("want the first ready and the others in line behind it")
		}
		large.Leave(End{})
		if !ready(small) {
			t.Error("the small one still waits for a head that has left")
		}
		first.Leave(End{})
		small.Leave(End{})
		if _, out := enter(l, 2, 500); out != 2 {
			t.Errorf("%d of 2 are ready: places that were not used were not given back", out)
		}
	})
}

func TestTokensPerMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		end  End
		want time.Duration // until 600 more tokens are there
	}{
		"as much as reserved":      {End{Sent: true, Tokens: 1000}, 36 * time.Second},
		"less than reserved":       {End{Sent: true, Tokens: 700, Class: loop.ErrorMidStream}, 18 * time.Second},
		"more than reserved":       {End{Sent: true, Tokens: 1500}, 66 * time.Second},
		"unknown":                  {End{Sent: true, Class: loop.ErrorTimeout}, 36 * time.Second},
		"refused, so nothing":      {End{Sent: true, Class: loop.ErrorRequest}, 0},
		"not sent":                 {End{Tokens: 1000}, 0},
		"less than a whole minute": {End{Sent: true, Tokens: 300, Class: loop.ErrorMidStream}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(Limits{TokensPerMinute: 1000})
				l.Enter(1000).Leave(tc.end)
				if got := waits(l.Enter(600)); got != tc.want {
					t.Errorf("waited %s; want %s", got, tc.want)
				}
			})
		})
	}
}

// TestLargerThanTheLimit: such a request waits for a full bucket, goes, and
// those behind it wait for its debt.
func TestLargerThanTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{TokensPerMinute: 1000})
		l.Enter(500).Leave(End{Sent: true})
		large, small := l.Enter(3000), l.Enter(100)
		if got := waits(large); got != 30*time.Second {
			t.Errorf("the large request waited %s; want 30s for a full bucket", got)
		}
		if got := waits(small); got != 126*time.Second {
			t.Errorf("the one behind waited %s; want 126s for 2000 of debt and 100", got)
		}
	})
}

// TestShareOfBounds: bounds four times the truth must not quarter the traffic.
func TestShareOfBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{TokensPerMinute: 10_000})
		for range 100 {
			ticket := l.Enter(4000)
			<-ticket.Ready()
			ticket.Leave(End{Sent: true, Tokens: 1000})
		}
		time.Sleep(time.Minute)
		if _, out := enter(l, 20, 4000); out < 9 || out > 10 {
			t.Errorf("%d requests of really 1000 tokens fit into 10000; want 9 or 10", out)
		}
		time.Sleep(2 * time.Minute)
		exact := l.Enter(4000)
		<-exact.Ready()
		exact.Leave(End{Sent: true, Tokens: 4000})
		time.Sleep(2 * time.Minute)
		if _, out := enter(l, 20, 4000); out > 2 {
			t.Errorf("%d leave at once after one used its whole bound; want 2", out)
		}
	})
}

func TestReports(t *testing.T) {
	type window = loop.RateWindow
	for name, tc := range map[string]struct {
		limits Limits
		report func(now time.Time) loop.RateReport
		want   []time.Duration // of three requests of 100 tokens, one after the other
	}{
		"an unlimited lane learns its limit": {
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 60, Remaining: 1, Reset: now.Add(59 * time.Second)}}
			},
			want: []time.Duration{0, time.Second, time.Second},
		},
		"nothing remains: the missing is back by reset, not all at reset": {
			limits: Limits{RequestsPerMinute: 60},
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 60, Remaining: 0, Reset: now.Add(time.Minute)}}
			},
			want: []time.Duration{time.Second, time.Second, time.Second},
		},
		"a limit per day comes back slowly": {
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 14400, Remaining: 0, Reset: now.Add(24 * time.Hour)}}
			},
			want: []time.Duration{6 * time.Second, 6 * time.Second, 6 * time.Second},
		},
		"the usual speed after reset": {
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 2, Remaining: 0, Reset: now.Add(80 * time.Second)}}
			},
			want: []time.Duration{40 * time.Second, 40 * time.Second, 30 * time.Second},
		},
		"a report that is over says only the limit": {
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 2, Remaining: 0, Reset: now.Add(-time.Second)}}
			},
			want: []time.Duration{0, 0, 30 * time.Second},
		},
		"a smaller configured limit holds": {
			limits: Limits{RequestsPerMinute: 1},
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Requests: window{Limit: 600, Remaining: 599, Reset: now.Add(time.Millisecond)}}
			},
			want: []time.Duration{time.Minute, time.Minute, time.Minute},
		},
		"tokens": {
			limits: Limits{TokensPerMinute: 6000},
			report: func(now time.Time) loop.RateReport {
				return loop.RateReport{Tokens: window{Limit: 600, Remaining: 100, Reset: now.Add(50 * time.Second)}}
			},
			want: []time.Duration{0, 10 * time.Second, 10 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(tc.limits)
				l.Enter(100).Leave(End{Sent: true, Tokens: 100, Rate: tc.report(time.Now())})
				var got []time.Duration
				for range tc.want {
					ticket := l.Enter(100)
					got = append(got, waits(ticket))
					ticket.Leave(End{Sent: true, Tokens: 100})
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("waits (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{})
		batch, _ := enter(l, 10, 10)
		for _, ticket := range batch { // all ten are refused: one congestion
			ticket.Leave(End{Sent: true, Class: loop.ErrorThrottle, RetryAfter: 7 * time.Second})
		}
		queue, out := enter(l, 8, 10)
		if out != 0 {
			t.Fatalf("%d leave although the provider asked to wait", out)
		}
		if diff := cmp.Diff(time.Now().Add(7*time.Second), queue[7].Until()); diff != "" {
			t.Errorf("estimate (-want +got):\n%s", diff)
		}
		if got := waits(queue[0]); got != 7*time.Second {
			t.Errorf("the first waited %s; want 7s", got)
		}
		// Slow start: each answer lets one more be out.
		var got []int
		for _, ticket := range queue[:3] {
			got = append(got, 8-l.Waiting())
			ticket.Leave(End{Sent: true})
		}
		if diff := cmp.Diff([]int{1, 3, 5}, got); diff != "" {
			t.Errorf("how many had left before each answer (-want +got):\n%s", diff)
		}
	})
}

func TestThrottledBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		asked time.Duration
		want  []time.Duration
	}{
		"as long as asked":          {5 * time.Second, []time.Duration{5 * time.Second, 5 * time.Second}},
		"at most a minute":          {time.Hour, []time.Duration{time.Minute, time.Minute}},
		"doubling when nobody asks": {0, []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 32e9, 60e9, 60e9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(Limits{})
				call(t, l, "")
				l.Enter(10).Leave(End{Sent: true, Class: loop.ErrorThrottle, RetryAfter: tc.asked})
				var got []time.Duration
				for range tc.want {
					ticket := l.Enter(10)
					got = append(got, waits(ticket))
					ticket.Leave(End{Sent: true, Class: loop.ErrorThrottle, RetryAfter: tc.asked})
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("blocks (-want +got):\n%s", diff)
				}
				if l.State() != closed {
					t.Errorf("the circuit is %s: throttling is no outage", l.State())
				}
			})
		})
	}
}

// TestOneCongestionIsOneCut: ten refusals of requests that were out together
// double the block no more than one does, and an answer starts anew.
func TestOneCongestionIsOneCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(Limits{})
		batch, _ := enter(l, 10, 10)
		var got []time.Duration
		for range 3 {
			for _, ticket := range batch {
				ticket.Leave(End{Sent: true, Class: loop.ErrorThrottle})
			}
			probe := l.Enter(10)
			got = append(got, waits(probe))
			probe.Leave(End{Sent: true})
			batch, _ = enter(l, 2, 10) // as many as one answer allows
		}
		if diff := cmp.Diff([]time.Duration{time.Second, time.Second, time.Second}, got); diff != "" {
			t.Errorf("blocks (-want +got):\n%s", diff)
		}
	})
}

func TestRetryTokens(t *testing.T) {
	retries := func(l *Lane, class loop.ErrorClass) (n int) {
		for l.TakeRetry(class) {
			n++
		}
		return n
	}
	for name, tc := range map[string]struct {
		class loop.ErrorClass
		want  int
	}{
		"server":      {loop.ErrorServer, 100},
		"throttle":    {loop.ErrorThrottle, 100},
		"not started": {loop.ErrorNotStarted, 100},
		"mid stream":  {loop.ErrorMidStream, 100},
		"lost":        {loop.ErrorLost, 100},
		"timeout":     {loop.ErrorTimeout, 50},
		"request":     {loop.ErrorRequest, 0},
		"text loop":   {loop.ErrorTextLoop, 0},
		"quota":       {loop.ErrorQuota, 0},
		"cancelled":   {loop.ErrorCancelled, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if got := retries(NewLane(Limits{}), tc.class); got != tc.want {
					t.Errorf("%d retries on credit; want %d", got, tc.want)
				}
			})
		})
	}
	t.Run("answers give back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := NewLane(Limits{})
			retries(l, loop.ErrorServer)
			for range 5 {
				call(t, l, "")
			}
			if got := retries(l, loop.ErrorServer); got != 1 {
				t.Errorf("%d retries for five answers; want 1", got)
			}
			l.Enter(1).Leave(End{Sent: true, RetryOf: loop.ErrorTimeout})
			if got := retries(l, loop.ErrorServer); got != 2 {
				t.Errorf("%d retries after a retry worked; want 2, for the 10 of its timeout and 1", got)
			}
			call(t, l, loop.ErrorServer)
			if l.TakeRetry(loop.ErrorServer) {
				t.Error("a failure gave retry tokens")
			}
		})
	})
	t.Run("never above the capacity", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := NewLane(Limits{})
			for range 50 {
				call(t, l, "")
			}
			if got := retries(l, loop.ErrorServer); got != 100 {
				t.Errorf("%d retries; want 100", got)
			}
		})
	})
}
