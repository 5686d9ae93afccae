package traffic

import (
	"math"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// bucket is one limit per minute: a token bucket that refills continuously and
// holds at most the amount of one minute. Its level may be below zero: a debt
// that must be refilled before anything else leaves. Without a limit it lets
// everything through and counts nothing.
type bucket struct {
	configured float64 // per minute; 0: the operator named none
	limit      float64 // per minute, in force: the smaller of configured and reported; 0: none known
	level      float64
	asOf       time.Time // when level was right

	// What a provider reports as missing comes back by reset, no sooner: until
	// then the bucket refills by slow, per second, if that is less than usual.
	slow  float64
	reset time.Time
}

func newBucket(perMinute int64, now time.Time) bucket {
	amount := float64(max(perMinute, 0))
	return bucket{configured: amount, limit: amount, level: amount, asOf: now}
}

// refill brings the level up to now.
func (b *bucket) refill(now time.Time) {
	from := b.asOf
	if end := earlier(now, b.reset); end.After(from) {
		b.level += b.slow * end.Sub(from).Seconds()
		from = end
	}
	if now.After(from) {
		b.level += b.perSecond() * now.Sub(from).Seconds()
	}
	b.level = min(b.level, b.limit)
	b.asOf = now
}

func (b *bucket) perSecond() float64 { return b.limit / time.Minute.Seconds() }

// when says from which time on the amount may be taken, after others have taken
// the amount before it. An amount above the whole limit needs a full bucket, as
// there is no more to wait for. The level must have been refilled.
func (b *bucket) when(before, amount float64) time.Time {
	missing := before + min(amount, b.limit) - b.level
	if b.limit == 0 || missing <= 0 {
		return b.asOf
	}
	at := b.asOf
	if b.reset.After(at) {
		gain := b.slow * b.reset.Sub(at).Seconds()
		if gain >= missing {
			return at.Add(wait(missing / b.slow))
		}
		missing -= gain
		at = b.reset
	}
	return at.Add(wait(missing / b.perSecond()))
}

// wait is so many seconds in whole milliseconds, rounded up: providers count no
// finer, and a rounding error must not become a timer that fires in vain.
func wait(seconds float64) time.Duration {
	return time.Duration(math.Ceil(seconds*1000)) * time.Millisecond
}

// take lowers the level and says by how much, for give.
func (b *bucket) take(amount float64) float64 {
	if b.limit == 0 {
		return 0
	}
	b.level -= amount
	return amount
}

// give puts back what was taken and not used; less than nothing takes more. The
// next refill keeps it within the limit.
func (b *bucket) give(amount float64) { b.level += amount }

// learn takes over what the provider counts, which includes the requests of
// other processes with the same key. It only ever lowers the level: the report
// may be as old as the answer is long, and what has left since is in the level
// alone.
func (b *bucket) learn(w loop.RateWindow, now time.Time) {
	if w.Limit <= 0 {
		return
	}
	reported := float64(w.Limit)
	known := b.limit > 0
	b.limit = reported
	if b.configured > 0 {
		b.limit = min(b.configured, reported)
	}
	if !known {
		b.level, b.asOf = b.limit, now
	}
	b.level = min(b.level, b.limit)
	if !w.Reset.After(now) || w.Remaining >= w.Limit {
		return // full again by now
	}
	b.level = min(b.level, float64(w.Remaining))
	if w.Remaining > w.Limit/2 {
		// Plenty is left. Some gateways send one fixed time with every answer, and
		// what little is missing would then trickle back for minutes.
		b.reset = time.Time{}
		return
	}
	b.reset = w.Reset
	b.slow = min(b.perSecond(), float64(w.Limit-w.Remaining)/w.Reset.Sub(now).Seconds())
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
