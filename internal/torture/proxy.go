package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// link is a TCP proxy between two parts, which can be broken in many ways. It is our
// own instead of toxiproxy because cutting the reply to a COMMIT takes looking at
// the bytes.
type link struct {
	name string
	lis  net.Listener
	dial func() (net.Conn, error)
	all  *group

	mu      sync.Mutex
	how     trouble
	changed chan struct{} // closed when how does
	pairs   map[*pair]struct{}
	cuts    int // replies to COMMIT that were cut
}

// trouble is what is wrong with a link. The zero value is nothing.
type trouble struct {
	down    bool          // connections are refused and those that exist are closed
	stalled bool          // nothing passes, and nobody is told
	latency time.Duration // added to every piece, each way
	rate    int           // bytes per second, each way; 0: as fast as it goes
	commits int           // this many replies to COMMIT are withheld, and their connections reset
}

// pair is one connection through a link.
type pair struct {
	near, far net.Conn
	cutting   chan struct{} // closed once the next reply is to be withheld
	once      sync.Once
}

func (p *pair) close() { _, _ = p.near.Close(), p.far.Close() }

// reset closes the near side with a RST, as a host does that has lost its state.
func (p *pair) reset() {
	if tcp, ok := p.near.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	p.close()
}

// newLink listens on a free port of loopback.
func newLink(ctx context.Context, all *group, name string, dial func() (net.Conn, error)) (*link, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open link %s: %w", name, err)
	}
	l := &link{name: name, lis: lis, dial: dial, all: all, changed: make(chan struct{}), pairs: map[*pair]struct{}{}}
	all.do(l.serve)
	return l, nil
}

func (l *link) addr() string { return l.lis.Addr().String() }

// set changes what is wrong with the link.
func (l *link) set(how trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.how = how
	close(l.changed)
	l.changed = make(chan struct{})
	if how.down {
		for p := range l.pairs {
			p.close()
		}
	}
}

// resetAll resets every connection; new ones work.
func (l *link) resetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		p.reset()
	}
}

// close ends the link and its connections.
func (l *link) close() {
	_ = l.lis.Close()
	l.set(trouble{down: true})
}

func (l *link) state() (trouble, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.how, l.changed
}

func (l *link) serve() {
	for {
		near, err := l.lis.Accept()
		if err != nil {
			return // closed
		}
		l.all.do(func() { l.join(near) })
	}
}

func (l *link) join(near net.Conn) {
	if how, _ := l.state(); how.down {
		_ = near.Close()
		return
	}
	far, err := l.dial()
	if err != nil {
		_ = near.Close()
		return
	}
	p := &pair{near: near, far: far, cutting: make(chan struct{})}
	l.mu.Lock()
	l.pairs[p] = struct{}{}
	l.mu.Unlock()
	l.all.do(func() { l.pump(p, near, far, true) })
	l.pump(p, far, near, false)
	l.mu.Lock()
	delete(l.pairs, p)
	l.mu.Unlock()
}

// pump copies one way until either side ends.
func (l *link) pump(p *pair, from, to net.Conn, out bool) {
	defer p.close()
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !l.delay(n) {
				return
			}
			if out {
				l.look(p, buf[:n])
			} else if p.withheld() {
				p.reset()
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// delay holds a piece back as the link's trouble asks. False: the link is down.
func (l *link) delay(n int) bool {
	how, changed := l.state()
	for how.stalled {
		<-changed
		how, changed = l.state()
	}
	if how.down {
		return false
	}
	wait := how.latency
	if how.rate > 0 {
		wait += time.Duration(n) * time.Second / time.Duration(how.rate)
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-changed:
		}
	}
	return true
}

// look marks the connection for a cut if this is a COMMIT and one is wanted.
func (l *link) look(p *pair, piece []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.how.commits > 0 && commits(piece) {
		l.how.commits--
		l.cuts++
		p.once.Do(func() { close(p.cutting) })
	}
}

// commits reports whether a piece has Postgres commit something: it says so, or it brings
// events, which are written without a word about the transaction around them.
func commits(piece []byte) bool {
	lower := bytes.ToLower(piece)
	return slices.ContainsFunc([]string{"commit\x00", "model_started", "model_answered", "call_started", "call_finished", "suspended"}, func(word string) bool {
		return bytes.Contains(lower, []byte(word))
	})
}

func (p *pair) withheld() bool {
	select {
	case <-p.cutting:
		return true
	default:
		return false
	}
}
