package main

import (
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

// What went wrong in other systems and takes real recordings, or the program, to see. The
// list of all is BUGS.md of internal/loop.

// Case 29, BerriAI/litellm 39910, router-for-me/CLIProxyAPI 679: tokens are estimated from
// the messages alone, without tools and instructions, and are 32 or 15 times too few. The
// estimate is shown here on real requests; the bound is above what was billed, alone and
// with the answer before it (TestHoldsCoverWhatWasBilled has all recordings).
func TestBug29BoundsAreNoEstimates(t *testing.T) {
	t.Parallel()
	book, err := pricing.Bundled()
	if err != nil {
		t.Fatal(err)
	}
	exchanges := wires()[0].billed(t)
	for name, want := range map[string]struct{ estimate, billed int64 }{
		"tool-use-stream":         {8, 543},
		"parallel-tools-stream-1": {8, 502},
		"thinking-tool-stream":    {27, 598},
	} {
		x := exchanges[name]
		if x.unsent != nil || len(x.sent.messages) == 0 {
			t.Fatalf("%s is no request of a run: %v", name, x.unsent)
		}
		var estimate int64
		for _, m := range x.sent.messages {
			estimate += int64(len(m.Text())) / 4
		}
		started := newReplay(t, name, x, book).next()
		if estimate != want.estimate || x.answer.Usage.Input() != want.billed {
			t.Errorf("%s: estimated at %d, billed at %d, want %d and %d", name, estimate, x.answer.Usage.Input(), want.estimate, want.billed)
		}
		if started.InputBound < want.billed {
			t.Errorf("%s: the bound is %d, below the bill of %d", name, started.InputBound, want.billed)
		}
	}
}

// Case 29, google-gemini/gemini-cli 16004: a picture of 2 MB is counted as its base64, 2.7
// million tokens, or as a flat 85 where 2,765 are billed. Here an image counts what the
// model's row says, or the most that any model is known to count, whatever its size.
func TestBug29ImagesAreNoText(t *testing.T) {
	t.Parallel()
	bound := func(imageTokens int64, parts ...loop.Part) int64 {
		spec := loop.Spec{
			Definition: loop.AgentSpec{Model: "acme/eye"}, Input: "What is on it?", Attachments: parts, Limits: loop.Defaults(),
			Price: loop.Price{Model: "acme/eye", Window: 1 << 30, ImageTokens: imageTokens, Rates: loop.Rates{Input: 1, Output: 1}},
		}
		r := &replay{t: t, name: "image", state: &loop.State{}}
		r.apply(loop.Created{Spec: spec}, loop.Claimed{Attempt: 1})
		return r.next().InputBound
	}
	image := func(bytes int) loop.Part {
		return loop.Part{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Data: make([]byte, bytes)}}
	}
	const framing = 16
	without := bound(2765)
	for name, c := range map[string]struct {
		tokens int64
		size   int
		want   int64
	}{
		"2 MB, the row says":      {2765, 2_000_000, 2765 + framing},
		"1 KB, the row says":      {2765, 1_000, 2765 + framing},
		"2 MB, no row says":       {0, 2_000_000, 48_169 + framing},
		"a model that sees a lot": {5000, 1, 5000 + framing},
	} {
		if got := bound(c.tokens, image(c.size)) - without; got != c.want {
			t.Errorf("%s: counts as %d, want %d", name, got, c.want)
		}
	}
}

// Case 41, openonion/connectonion 1150: a run that reaches its cap looks like any other to
// the shell, which goes on with half an answer.
func TestBug41CapIsNoSuccess(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.server.run.Stop = &loopdv1.Stop{
		Reason: loopdv1.StopReason_STOP_REASON_ITERATION_CAP, Guard: "iterations", Observed: "11", Limit: "12",
		Message: "the run may take 12 iterations", Iteration: 11,
	}
	term.server.streams = []func(sender) error{sends(incident(t)[:2], nil)}

	term.wantCode(t, 3, term.loopd("run", "watch", runID))
}
