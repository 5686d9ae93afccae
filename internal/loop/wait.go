package loop

import (
	"encoding/json"
	"fmt"
	"time"
)

// Bounds of the built-in wait. It costs time, not tokens, so that it may be long;
// a look costs somebody else's machine.
const (
	longestWait  = 24 * time.Hour
	shortestPoll = 5 * time.Second
	pollShare    = 60 // a look at most every so many parts of the time waited
)

// waitArgs are what the model gives to the built-in wait.
type waitArgs struct {
	Seconds   float64         `json:"seconds"`
	Until     time.Time       `json:"until"`
	Tool      string          `json:"tool"`      // look at this pollable tool
	Arguments json.RawMessage `json:"arguments"` // with these arguments
	Every     float64         `json:"every_seconds"`
}

// polled is how far a wait has come.
type polled struct {
	hash string    // of the first result that was seen
	next time.Time // when to look again; zero: at once
}

// Poll tells what to make of a look at the tool that a wait watches.
type Poll struct {
	Before string    // fingerprint of what was seen so far; "" = this is the first look
	Next   time.Time // when to look again, or to end the wait
}

// Judge turns the record of a look into the event for it: the wait goes on while
// the result is the same, and ends with one that is not.
func (p *Poll) Judge(look CallFinished) Body {
	same := p.Before == "" || p.Before == look.ResultHash
	if same && look.Outcome == OutcomeOK {
		return CallPolled{CallID: look.CallID, Attempt: look.Attempt, ResultHash: look.ResultHash, Next: p.Next}
	}
	return look
}

// handOutWait checks the arguments, which no schema can check in full.
func (g *gate) handOutWait(c *call, out CallHandedOut) {
	args, problem := g.readWait(c)
	if problem != "" {
		g.refuse(c, OutcomeInvalidArgs, "The wait did not begin: "+problem)
		return
	}
	out.Until = g.s.patience(g.now, args.Until.Sub(g.now))
	g.handed = append(g.handed, out)
}

// readWait reads and bounds the arguments of a wait.
func (g *gate) readWait(c *call) (waitArgs, string) {
	var args waitArgs
	if err := json.Unmarshal([]byte(c.asSent().Args), &args); err != nil {
		return args, "the arguments cannot be read: " + err.Error()
	}
	begun := g.now
	if !c.StartedAt.IsZero() {
		begun = c.StartedAt
	}
	latest := begun.Add(longestWait)
	switch {
	case args.Seconds < 0 || args.Every < 0:
		return args, "seconds and every_seconds must not be negative"
	case args.Seconds > 0:
		args.Until = begun.Add(time.Duration(min(args.Seconds, longestWait.Seconds()) * float64(time.Second)))
	case args.Until.IsZero() && args.Tool == "":
		return args, "say how long, with seconds or until"
	case args.Until.IsZero():
		args.Until = latest
	}
	if args.Until.After(latest) {
		args.Until = latest
	}
	if args.Tool == "" {
		return args, ""
	}
	spec, known := g.s.spec.Definition.Tool(args.Tool)
	if !known || !spec.Pollable || spec.Effect != ReadOnly || spec.HTTP == nil && spec.MCP == nil {
		return args, fmt.Sprintf("%q is not a tool that can be polled", args.Tool)
	}
	if len(args.Arguments) == 0 {
		args.Arguments = json.RawMessage("{}")
	}
	return args, ""
}

// judgeWait lets time pass, or looks at what is watched.
func (g *gate) judgeWait(c *call) {
	args, problem := g.readWait(c)
	watches := problem == "" && args.Tool != ""
	switch {
	case !watches && g.now.Before(c.Until):
		g.waitFor(WaitTimer, c.Until)
	case !watches || !g.now.Before(c.Until) && c.poll.hash != "":
		g.ended = append(g.ended, CallFinished{
			CallID: c.Call.ID, Attempt: c.Attempt, Outcome: OutcomeOK, ResultHash: digest("result", "ok", c.Until.UTC().Format(time.RFC3339Nano)),
			Content: marshal(map[string]any{"waited_seconds": int64(g.now.Sub(c.StartedAt).Seconds()), "changed": false}),
		})
	case g.now.Before(c.poll.next):
		g.waitFor(WaitTimer, earliest(c.poll.next, c.Until))
	default:
		g.look(c, args)
	}
}

// look sends one call of the watched tool, as another attempt of the wait.
func (g *gate) look(c *call, args waitArgs) {
	spec, _ := g.s.spec.Definition.Tool(args.Tool)
	// The longer it has been waiting, the less a minute matters: a day takes some
	// hundreds of looks, not thousands.
	every := max(shortestPoll, time.Duration(min(args.Every, longestWait.Seconds())*float64(time.Second)), g.now.Sub(c.StartedAt)/pollShare)
	g.sends = append(g.sends, Send{
		Call:    ToolCall{ID: c.Call.ID, Name: args.Tool, Args: string(args.Arguments)},
		Spec:    spec,
		Attempt: c.Attempt + 1, Key: fmt.Sprintf("%s:%d", c.Call.Key(g.s.run), c.Attempt+1), MaxResult: g.s.resultShare(spec),
		Poll: &Poll{Before: c.poll.hash, Next: earliest(g.now.Add(every), c.Until)}, Reader: g.s.readsResults(),
	})
}

// applyPolled notes a look that changed nothing.
func (l *ledger) applyPolled(e CallPolled) error {
	c, err := l.get(e.CallID, CallStarted)
	if err != nil {
		return err
	}
	if c.poll == nil || e.Attempt != c.Attempt {
		return fmt.Errorf("call %q is no wait at attempt %d: %w", e.CallID, e.Attempt, ErrImpossible)
	}
	c.State, c.poll.next = CallOffered, e.Next
	if c.poll.hash == "" {
		c.poll.hash = e.ResultHash
	}
	l.touch(c)
	return nil
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
