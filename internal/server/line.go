package server

import (
	"context"
	"fmt"
	"time"
)

// tenantCreates is how many runs of one tenant are made at once: half of the connections
// that there are for everybody, and enough for five hundred runs a second, since creates
// share commits.
const tenantCreates = 8

// standInLine lets a tenant make a few runs at once only: the others of a burst wait here,
// where they cost nothing, and not for the database, where they would be in everybody's
// way. Whom there is no room for is refused before and after. leave lets the next one in.
func (s *Server) standInLine(ctx context.Context) (leave func(), err error) {
	if err := s.tenantRoom(ctx, false); err != nil {
		return nil, err
	}
	leave, err = s.gate.lineUp(ctx, tenant(ctx))
	if err != nil {
		return nil, err
	}
	if err := s.admitTenant(ctx); err != nil { // those before it may have filled the queue
		leave()
		return nil, err
	}
	return leave, nil
}

// lineUp waits until fewer than tenantCreates runs of the tenant are being made, at most
// as long as one may wait for the database. They come in the order of their arrival.
func (g *gate) lineUp(ctx context.Context, who string) (leave func(), err error) {
	g.mu.Lock()
	line := g.lines[who]
	if line == nil {
		line = make(chan struct{}, tenantCreates)
		g.lines[who] = line
	}
	g.mu.Unlock()
	leave = func() { <-line }
	select {
	case line <- struct{}{}:
		return leave, nil
	default:
	}
	var late <-chan time.Time
	if g.limits.PoolWait > 0 {
		timer := time.NewTimer(g.limits.PoolWait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case line <- struct{}{}:
		return leave, nil
	case <-late:
		return nil, g.refuse(shedCreate, shedPoolWait, time.Second, fmt.Sprintf("new runs of this tenant wait for each other for more than %s, and that is too long", g.limits.PoolWait))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
