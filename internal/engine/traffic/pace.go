package traffic

import "time"

const (
	// longestBlock bounds what a refusal may block the lane for: a wrong header
	// must not stop every run for an hour. After it one request tries.
	longestBlock = time.Minute
	// firstBlock follows a refusal that does not say when to come back, as 503
	// and 529 seldom do; it doubles with every further one, up to longestBlock.
	firstBlock = time.Second
)

// pace slows the lane down after the provider refused a request as too much, so
// that the hundreds that wait behind do not all go and find out for themselves.
type pace struct {
	until  time.Time // nothing leaves before
	cuts   uint64    // how often the window was cut
	window int       // how many that left since the last cut may be out; 0: never cut, no limit
	out    int       // how many are
	streak int       // refusals in a row that cut, without an answer between
}

func (p *pace) full() bool { return p.window > 0 && p.out >= p.window }

// leave counts out a request that left after so many cuts.
func (p *pace) leave(cut uint64) {
	if cut == p.cuts {
		p.out--
	}
}

// cut starts again with one request. Those that left before do not count: they
// may hang until their deadline.
func (p *pace) cut() {
	p.cuts++
	p.window, p.out = 1, 0
}

// throttled blocks the lane and cuts the window. Of the requests that were out
// together, only the first that is refused cuts: one congestion is one cut.
func (p *pace) throttled(retryAfter time.Duration, cut uint64, now time.Time) {
	block := min(retryAfter, longestBlock)
	if cut == p.cuts {
		p.cut()
		if block <= 0 {
			block = min(firstBlock<<min(p.streak, 6), longestBlock)
		}
		p.streak++
	}
	p.until = later(p.until, now.Add(block))
}

// answered widens the window by one. As one leaves for each answer anyway, the
// number out doubles with every answer time, as in TCP's slow start; and if the
// others that were out are answered after a cut, nothing is lost but the block.
func (p *pace) answered() {
	p.streak = 0
	if p.window > 0 {
		p.window++
	}
}
