package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc/connectivity"
)

// upgraded is what became of the upgrade.
type upgraded struct {
	from, to string
	migrated time.Duration // what the migration took, under load
	changes  map[string]int
}

// first is the binary that replicas begin with.
func (s settings) first() string {
	if s.previous != "" {
		return s.previous
	}
	return s.loopd
}

// current is the binary that the replica's next process runs.
func (r *replica) current() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.binary
}

// upgrade leads the replicas from the previous binary to the new one while runs are
// made and faults are drawn. In twelfths of the duration: two on the old schema; the
// migration, then one with old replicas on the new schema; the first upgrade, then
// five in which replicas change back and forth, by SIGTERM or by SIGKILL; then all are
// upgraded one after another, and the rest is for the new ones.
func (w *world) upgrade(ctx context.Context, s settings) error {
	w.upgraded = upgraded{from: s.previous, to: s.loopd, changes: map[string]int{}}
	slice := s.duration / 12
	if !pause(ctx, 2*slice) {
		return nil
	}
	var err error
	w.breaker.takeSoon(ctx, "migration", "postgres", func() {
		began := time.Now()
		err = w.migrate(context.WithoutCancel(ctx), s.loopd)
		w.upgraded.migrated = time.Since(began)
	})
	if err != nil || !pause(ctx, slice) {
		return err
	}
	w.replace(ctx, w.replicas[0], s.loopd, syscall.SIGTERM)
	w.mix(ctx, s, 5*slice)
	for _, r := range w.replicas {
		if r.current() != s.loopd {
			w.replace(ctx, r, s.loopd, syscall.SIGTERM)
		}
	}
	return nil
}

// mix lets replicas change between the binaries for d.
func (w *world) mix(ctx context.Context, s settings, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	draw := rand.New(rand.NewPCG(s.seed, 3))
	for pause(ctx, time.Second+time.Duration(draw.Int64N(int64(3*time.Second)))) {
		r := w.replicas[draw.IntN(len(w.replicas))]
		to, sig := s.loopd, syscall.SIGTERM
		if r.current() == s.loopd {
			to = s.previous
		}
		if draw.IntN(2) == 0 {
			sig = syscall.SIGKILL
		}
		w.replace(ctx, r, to, sig)
	}
}

// replace ends a replica's process and waits until the next one, of the given binary,
// answers. What ctx ends is only the wait.
func (w *world) replace(ctx context.Context, r *replica, binary string, sig syscall.Signal) {
	kind := "upgrade"
	if binary == w.upgraded.from {
		kind = "downgrade"
	}
	w.breaker.takeSoon(context.WithoutCancel(ctx), kind, r.name, func() {
		r.mu.Lock()
		r.binary = binary
		r.mu.Unlock()
		r.end(context.WithoutCancel(ctx), sig, 0)
		w.upgraded.changes[fmt.Sprintf("%ss by %s", kind, nameOf(sig))]++
		soon, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		for r.conn.GetState() != connectivity.Ready {
			r.conn.Connect()
			if !pause(soon, 50*time.Millisecond) {
				return
			}
		}
	})
}

// nameOf is a signal's name, of the two that replicas end by.
func nameOf(sig syscall.Signal) string {
	if sig == syscall.SIGKILL {
		return "SIGKILL"
	}
	return "SIGTERM"
}

// reportUpgrade prints how far the binaries met.
func (w *world) reportUpgrade(ctx context.Context, out io.Writer) {
	fmt.Fprintf(out, "\nupgrade from %s:\n%6d ms  migration under load\n", w.upgraded.from, w.upgraded.migrated.Milliseconds())
	for _, row := range table(w.upgraded.changes) {
		fmt.Fprintln(out, row)
	}
	alone := 0
	for _, r := range w.replicas {
		text, err := os.ReadFile(r.file("log"))
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		alone += bytes.Count(text, []byte("was written by a newer loopd"))
	}
	fmt.Fprintf(out, "%6d  times a run was left alone, as it was written by the newer one\n", alone)
	w.count(ctx, out, `SELECT 'runs that ' || workers || CASE workers WHEN 4 THEN ' or more' ELSE '' END || ' processes worked on', count(*) FROM
		(SELECT least(count(DISTINCT body ->> 'worker'), 4) AS workers FROM events WHERE kind = 'claimed' GROUP BY tenant_id, run_id) r GROUP BY 1 ORDER BY 1`)
}
