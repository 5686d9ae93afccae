package server

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const (
	// tenantCreates is how many runs of one tenant are made at once: half of the connections
	// that there are for everybody.
	tenantCreates = 8
	// linePatience is how long a new run waits for its tenant's pace. Who would wait longer
	// is better told at once.
	linePatience = time.Second
	// lineLongest is how long one waits until fewer are being made. It is several times what
	// the database may be waited for, since a line that moves is no overload.
	lineLongest = 5 * time.Second
)

// line is where a tenant's new runs wait until they are made: in the order of their
// arrival, no faster than the tenant's pace, and a few at once.
type line struct {
	pace   *rate.Limiter
	making chan struct{}
}

// line is that of a tenant.
func (g *gate) line(who string) *line {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lines[who]
	if l == nil {
		pace, burst := rate.Inf, 1
		if n := g.limits.TenantCreates; n > 0 {
			pace, burst = rate.Limit(n), max(1, n/4) // a quarter of a second's worth at once
		}
		l = &line{pace: rate.NewLimiter(pace, burst), making: make(chan struct{}, tenantCreates)}
		g.lines[who] = l
	}
	return l
}

// standInLine lets a tenant make its runs at its pace and a few at once only: the others
// of a burst wait here, where they cost nothing, and not for the database and the CPU,
// where they would be in everybody's way. Whom there is no room for is refused before and
// after. leave lets the next one in. Where tenants have no bounds there are no lines.
func (s *Server) standInLine(ctx context.Context) (leave func(), err error) {
	if s.gate.limits.TenantQueue <= 0 && s.gate.limits.TenantCreates <= 0 {
		return func() {}, nil
	}
	if err := s.tenantRoom(ctx, false); err != nil {
		return nil, err
	}
	leave, err = s.lineUp(ctx, s.gate.line(tenant(ctx)))
	if err != nil {
		return nil, err
	}
	if err := s.admitTenant(ctx); err != nil { // those before it may have filled the queue
		leave()
		return nil, err
	}
	return leave, nil
}

// lineUp waits for a place among those that are being made.
func (s *Server) lineUp(ctx context.Context, l *line) (leave func(), err error) {
	turn := l.pace.Reserve()
	if wait := turn.Delay(); wait > linePatience {
		turn.Cancel()
		return nil, s.lineTooLong(wait)
	}
	if wait := turn.Delay(); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			turn.Cancel()
			return nil, context.Cause(ctx)
		}
	}
	var late <-chan time.Time // never, if nobody is to be refused for waiting
	if s.gate.limits.PoolWait > 0 {
		timer := time.NewTimer(lineLongest)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case l.making <- struct{}{}:
		return func() { <-l.making }, nil
	case <-late:
		return nil, s.lineTooLong(lineLongest)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// lineTooLong refuses a run that others of its tenant are before.
func (s *Server) lineTooLong(wait time.Duration) error {
	s.metrics.shed.WithLabelValues(shedCreate, shedTenantQueue).Inc()
	limit := s.gate.limits.TenantCreates
	if limit <= 0 {
		limit = tenantCreates
	}
	r := refuse(loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL,
		fmt.Sprintf("so many new runs of this tenant are before this one that it would wait for %s or longer: send fewer a second, or try again later", wait.Round(time.Millisecond)), "limit", fmt.Sprint(limit))
	r.retry = max(wait, time.Second)
	return r
}
