package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// toolTimeout is that of every tool.
const toolTimeout = 4 * time.Second

// breaker injects faults, drawn from a seed. What a fault does is in the table of
// kinds; each ends by itself and leaves its target whole.
type breaker struct {
	w    *world
	rand *rand.Rand
	all  group

	mu    sync.Mutex
	busy  map[string]bool // targets that a fault works on
	done  map[string]int  // faults by kind
	error error           // the machine itself failed

	windows []window // of all faults
}

// window is when a fault was at work.
type window struct {
	kind         string
	began, ended time.Time
}

// kind is a kind of fault.
type kind struct {
	name   string
	weight int
	run    func(b *breaker, ctx context.Context, r draws)
}

// draws are the numbers of one fault, drawn before it runs, so that the order in
// which faults end does not change what comes next.
type draws struct {
	replica *replica
	link    *link
	a, b    time.Duration // up to a second each
	coin    bool
	order   []int // of all links
}

// kinds are all faults. Kills weigh as much as all others together.
func kinds() []kind {
	return []kind{
		{"kill", 56, (*breaker).kill},
		{"terminate", 4, (*breaker).terminate},
		{"freeze", 11, (*breaker).freeze},
		{"postgres crash", 11, (*breaker).crash},
		{"backends killed", 5, (*breaker).backends},
		{"postgres readonly", 3, (*breaker).readonly},
		{"postgres slow", 3, (*breaker).sluggish},
		{"link cut", 5, (*breaker).cut},
		{"link stalled", 3, (*breaker).stall},
		{"link late", 4, (*breaker).late},
		{"link slow", 3, (*breaker).slow},
		{"link reset", 5, (*breaker).reset},
		{"commit reply cut", 5, (*breaker).commits},
		{"swizzle clog", 2, (*breaker).swizzle},
	}
}

// pick keeps the kinds that are named, comma-separated; "all" is all, "none" none.
func pick(names string) ([]kind, error) {
	all := kinds()
	switch names {
	case "all":
		return all, nil
	case "none":
		return nil, nil
	}
	var picked []kind
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(k kind) bool { return k.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("--faults: there is no fault %q", name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// run breaks things until ctx ends, then waits for the faults under way to end.
func (b *breaker) run(ctx context.Context, of []kind) {
	defer b.all.wait()
	total := 0
	for _, k := range of {
		total += k.weight
	}
	for total > 0 && pause(ctx, 800*time.Millisecond+time.Duration(b.rand.Int64N(int64(1600*time.Millisecond)))) {
		n, chosen := b.rand.IntN(total), kind{}
		for _, k := range of {
			if n -= k.weight; n < 0 {
				chosen = k
				break
			}
		}
		links := b.w.links()
		r := draws{
			replica: b.w.replicas[b.rand.IntN(len(b.w.replicas))], link: links[b.rand.IntN(len(links))], order: b.rand.Perm(len(links)),
			a: time.Duration(b.rand.Int64N(int64(time.Second))), b: time.Duration(b.rand.Int64N(int64(time.Second))), coin: b.rand.IntN(2) == 0,
		}
		before := b.w.progress()
		b.all.do(func() { chosen.run(b, ctx, r) })
		for range 100 { // a machine that is slow to recover is given 20 s to do something
			if b.w.progress() > before || !pause(ctx, 200*time.Millisecond) {
				break
			}
		}
	}
}

// take keeps other faults off a target while f works on it. One at a time.
func (b *breaker) take(kind, target string, f func()) {
	b.mu.Lock()
	if b.busy[target] {
		b.mu.Unlock()
		return
	}
	b.busy[target] = true
	b.mu.Unlock()
	b.w.log.Info("fault", "kind", kind, "target", target)
	began := time.Now()
	f()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.windows = append(b.windows, window{kind, began, time.Now()})
	b.busy[target] = false
	b.done[kind]++
}

func (b *breaker) kill(ctx context.Context, r draws) {
	b.take("kill", r.replica.name, func() { r.replica.end(ctx, syscall.SIGKILL, 2*r.a) })
}

func (b *breaker) terminate(ctx context.Context, r draws) {
	b.take("terminate", r.replica.name, func() { r.replica.end(context.WithoutCancel(ctx), syscall.SIGTERM, 2*r.a) })
}

// freeze stops a replica until well after its lease has gone to others.
func (b *breaker) freeze(ctx context.Context, r draws) {
	b.take("freeze", r.replica.name, func() {
		if r.replica.signal(syscall.SIGSTOP) {
			pause(ctx, leaseTTL+time.Second+3*r.a)
			r.replica.signal(syscall.SIGCONT)
		}
	})
}

func (b *breaker) crash(ctx context.Context, r draws) {
	b.take("postgres crash", "postgres", func() {
		sig := syscall.SIGKILL
		if r.coin {
			sig = syscall.SIGQUIT
		}
		if err := b.w.database.crash(ctx, sig, 2*r.a); err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.error = err
		}
	})
}

// backends ends every session of Postgres.
func (b *breaker) backends(ctx context.Context, _ draws) {
	b.take("backends killed", "postgres", func() {
		_, _ = b.w.db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	})
}

// readonly has Postgres refuse all writes for a while, as one does that was made a
// standby.
func (b *breaker) readonly(ctx context.Context, r draws) {
	b.take("postgres readonly", "postgres", func() {
		if b.writes(ctx, false) {
			pause(ctx, 500*time.Millisecond+4*r.a)
		}
		for ctx := context.WithoutCancel(ctx); !b.writes(ctx, true); {
			pause(ctx, 100*time.Millisecond)
		}
	})
}

// writes sets whether Postgres takes any. False: it could not be told.
func (b *breaker) writes(ctx context.Context, taken bool) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, command := range []string{fmt.Sprintf("ALTER SYSTEM SET default_transaction_read_only = %t", !taken), "SELECT pg_reload_conf()"} {
		if _, err := b.w.db.Exec(ctx, command); err != nil {
			return false
		}
	}
	return true
}

// sluggish makes Postgres answer late, for all replicas.
func (b *breaker) sluggish(ctx context.Context, r draws) {
	b.take("postgres slow", "all links", func() {
		for _, replica := range b.w.replicas {
			replica.database.set(trouble{latency: 50*time.Millisecond + r.b/5})
		}
		pause(ctx, time.Second+4*r.a)
		for _, replica := range b.w.replicas {
			replica.database.set(trouble{})
		}
	})
}

// trouble gives a link some for a while.
func (b *breaker) trouble(ctx context.Context, kind string, l *link, how trouble, d time.Duration) {
	b.take(kind, l.name, func() {
		l.set(how)
		pause(ctx, d)
		l.set(trouble{})
	})
}

func (b *breaker) cut(ctx context.Context, r draws) {
	b.trouble(ctx, "link cut", r.link, trouble{down: true}, 500*time.Millisecond+4*r.a)
}

func (b *breaker) stall(ctx context.Context, r draws) {
	b.trouble(ctx, "link stalled", r.link, trouble{stalled: true}, 500*time.Millisecond+5*r.a)
}

func (b *breaker) late(ctx context.Context, r draws) {
	b.trouble(ctx, "link late", r.link, trouble{latency: 20*time.Millisecond + r.b/4}, time.Second+4*r.a)
}

func (b *breaker) slow(ctx context.Context, r draws) {
	b.trouble(ctx, "link slow", r.link, trouble{rate: 16 << 10}, time.Second+4*r.a)
}

func (b *breaker) reset(_ context.Context, r draws) {
	b.take("link reset", r.link.name, r.link.resetAll)
}

func (b *breaker) commits(ctx context.Context, r draws) {
	b.trouble(ctx, "commit reply cut", r.replica.database, trouble{commits: 5}, time.Second+2*r.a)
}

// swizzle stalls all links one by one, and frees them in another order.
func (b *breaker) swizzle(ctx context.Context, r draws) {
	b.take("swizzle clog", "all links", func() {
		links := b.w.links()
		for _, l := range links {
			l.set(trouble{stalled: true})
			pause(ctx, r.a/2)
		}
		for _, i := range r.order {
			pause(ctx, r.b/2)
			links[i].set(trouble{})
		}
	})
}

// heal makes everything whole, whatever state faults left it in.
func (b *breaker) heal() {
	for _, l := range b.w.links() {
		l.set(trouble{})
	}
	for _, r := range b.w.replicas {
		r.signal(syscall.SIGCONT)
	}
}

// counts are the faults by kind, in words.
func (b *breaker) counts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return table(b.done)
}

// table is a count of things, most readable.
func table(counts map[string]int) []string {
	var rows []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		rows = append(rows, fmt.Sprintf("%6d  %s", counts[what], what))
	}
	return rows
}
