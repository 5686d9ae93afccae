package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// Beside faults that are drawn there are two courses of events that are planned: the
// upgrade of all replicas (upgrade.go), and the failovers of a cluster (cluster.go).

func (s *settings) planFlags(f *flag.FlagSet) {
	f.StringVar(&s.previous, "previous", "", "an older loopd binary: replicas begin with it and are upgraded one by one, back and forth")
	f.StringVar(&s.cluster, "cluster", "", "use the running Postgres cluster of this script (deploy/ha/cluster) and fail it over; its database loopd is made anew")
}

// planned checks that the faults and the plan can go together.
func (s *settings) planned() error {
	of, err := pick(s.faults)
	if err != nil {
		return err
	}
	for _, k := range of {
		if s.cluster != "" && (k.name == "postgres crash" || k.name == "backends killed") {
			return errors.New("--faults: with --cluster Postgres is broken by plan: name faults of replicas, such as kill,freeze, or none")
		}
	}
	if s.cluster != "" && s.previous != "" {
		return errors.New("--cluster and --previous are two plans: choose one")
	}
	return nil
}

// carryOut makes what is planned happen, until ctx ends.
func (w *world) carryOut(ctx context.Context, s settings) {
	var err error
	switch {
	case s.previous != "":
		err = w.upgrade(ctx, s)
	case s.cluster != "":
		err = w.failOver(ctx)
	}
	if err != nil {
		w.breaker.mu.Lock()
		defer w.breaker.mu.Unlock()
		w.breaker.error = err
	}
}

// takeSoon is take for what is planned: it waits until no fault works on the target.
// False: ctx ended before.
func (b *breaker) takeSoon(ctx context.Context, kind, target string, f func()) bool {
	for ran := false; ; {
		b.take(kind, target, func() { ran = true; f() })
		if ran || !pause(ctx, 50*time.Millisecond) {
			return ran
		}
	}
}

// reportPlanned prints what came of the plan.
func (w *world) reportPlanned(ctx context.Context, out io.Writer) {
	if w.database.cluster != nil {
		w.reportFailovers(ctx, out)
	}
	if w.upgraded.to != "" {
		w.reportUpgrade(ctx, out)
	}
}

// milliseconds is a duration as people compare them; "-" for what did not happen.
func milliseconds(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
