package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// lineWorld is a server that makes no runs, only lines.
func lineWorld(t *testing.T, limits Shed) *Server {
	t.Helper()
	metrics, err := newMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{metrics: metrics, gate: newGate(limits, metrics.shed)}
}

func fullQueue(err error) bool {
	r := classify(err)
	return r != nil && r.reason == loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL && r.retry >= time.Second
}

// A burst of one tenant is made a few at once. Who leaves lets the next one in, another
// tenant has a line of its own, and nobody stands in one for longer than five seconds.
func TestATenantMakesAFewRunsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := lineWorld(t, Shed{})
		var leave func()
		for range tenantCreates {
			out, err := s.lineUp(t.Context(), s.gate.line("loud"))
			if err != nil {
				t.Fatal(err)
			}
			leave = out
		}

		began := time.Now()
		if _, err := s.lineUp(t.Context(), s.gate.line("loud")); !fullQueue(err) || time.Since(began) != lineLongest {
			t.Errorf("one more than are made at once: %v after %s", err, time.Since(began))
		}
		if _, err := s.lineUp(t.Context(), s.gate.line("quiet")); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		time.AfterFunc(lineLongest/2, leave)
		if _, err := s.lineUp(t.Context(), s.gate.line("loud")); err != nil {
			t.Errorf("when one has left: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(lineLongest/2, cancel)
		if _, err := s.lineUp(ctx, s.gate.line("loud")); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that leaves: %v", err)
		}
	})
}

// New runs of a tenant come at its pace: a burst of a quarter of a second's worth at once,
// the next ones in their time, and those who would wait longer than a second not at all.
func TestNewRunsComeAtTheTenantsPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := lineWorld(t, Shed{TenantCreates: 4})
		began := time.Now()
		for i := range 5 { // the first at once, then four a second
			leave, err := s.lineUp(t.Context(), s.gate.line("loud"))
			if want := time.Duration(i) * time.Second / 4; err != nil || time.Since(began) != want {
				t.Errorf("run %d: %v after %s, want %s", i, err, time.Since(began), want)
				continue
			}
			leave()
		}

		l := s.gate.line("loud")
		l.pace.ReserveN(time.Now(), 1)
		for range 4 {
			l.pace.Reserve()
		}
		asked := time.Now()
		if _, err := s.lineUp(t.Context(), l); !fullQueue(err) || !time.Now().Equal(asked) {
			t.Errorf("behind too many: %v after %s", err, time.Since(asked))
		}
	})
}

// Where tenants have no bounds, any number of their runs are made at once.
func TestNoLinesWithoutBounds(t *testing.T) {
	t.Parallel()
	s := lineWorld(t, Shed{})
	for range 10 * tenantCreates {
		if _, err := s.standInLine(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
