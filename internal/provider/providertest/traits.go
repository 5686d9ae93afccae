package providertest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// Trait is something that a wire can do and that an adapter must have been shown
// doing, in a recording.
type Trait string

// The closed list of traits. What no wire has a recording for because the suite
// makes it up itself (a cut stream, garbage, bare statuses, silence) is not here:
// every adapter is held to that without a word in its table.
const (
	TraitText          Trait = "text"                  // FinishDone with visible text
	TraitOneCall       Trait = "one tool call"         // FinishToolCalls with one call
	TraitParallelCalls Trait = "parallel tool calls"   // FinishToolCalls with two or more
	TraitStreamedCall  Trait = "streamed tool input"   // a stream with a call that has arguments
	TraitReasoning     Trait = "reasoning"             // kept byte for byte and sent back
	TraitCache         Trait = "cache usage"           // tokens read from or written to a cache
	TraitRefusal       Trait = "refusal"               // refused or filtered, in a 200 answer
	TraitTruncatedCall Trait = "truncated tool input"  // cut by the output limit inside arguments
	TraitPaused        Trait = "paused"                // to be sent back unchanged
	TraitMissingUsage  Trait = "missing usage"         // an answer without a count
	TraitStreamError   Trait = "error inside a stream" // an error event after a 200
	TraitContext       Trait = "context overflow"      // a request larger than the window
	TraitBadRequest    Trait = "refused request"       // 400
	TraitNoModel       Trait = "unknown model"         // usually 404
	TraitWrongKey      Trait = "wrong key"             // usually 401
	TraitThrottled     Trait = "throttled"             // usually 429
	TraitQuota         Trait = "quota spent"           // no credit: waiting does not help
	TraitServerError   Trait = "server error"          // usually 500
)

// trait says what a recording must look like to show a trait.
type trait struct {
	name Trait
	need string
	fits func(Exchange, Want) bool
}

var traits = []trait{
	{TraitText, "Finish done and Text", func(_ Exchange, w Want) bool { return w.Finish == loop.FinishDone && w.Text != "-" }},
	{TraitOneCall, "Finish tool_calls and one call", func(_ Exchange, w Want) bool { return w.Finish == loop.FinishToolCalls && len(w.Calls) == 1 }},
	{TraitParallelCalls, "Finish tool_calls and two calls", func(_ Exchange, w Want) bool { return w.Finish == loop.FinishToolCalls && len(w.Calls) > 1 }},
	{TraitStreamedCall, "a stream and a call with arguments", func(x Exchange, w Want) bool {
		return x.Response.SSE != "" && slices.ContainsFunc(w.Calls, func(c loop.ToolCall) bool { return c.Args != "{}" })
	}},
	{TraitReasoning, "Reasoning", func(_ Exchange, w Want) bool { return w.Reasoning }},
	{TraitCache, "Usage with cached tokens", func(_ Exchange, w Want) bool { return w.Usage.Input() > w.Usage.InputUncached }},
	{TraitRefusal, "Finish refused", func(_ Exchange, w Want) bool { return w.Finish == loop.FinishRefused }},
	{TraitTruncatedCall, "Finish truncated and a call whose arguments stop in the middle", func(_ Exchange, w Want) bool {
		return w.Finish == loop.FinishTruncated && slices.ContainsFunc(w.Calls, func(c loop.ToolCall) bool { return !json.Valid([]byte(c.Args)) })
	}},
	{TraitPaused, "Finish paused", func(_ Exchange, w Want) bool { return w.Finish == loop.FinishPaused }},
	{TraitMissingUsage, "UsageMissing", func(_ Exchange, w Want) bool { return w.Class == "" && w.UsageMissing }},
	{TraitStreamError, "status 200, a stream and Class mid_stream", func(x Exchange, w Want) bool {
		return x.Response.Status == http.StatusOK && x.Response.SSE != "" && w.Class == loop.ErrorMidStream
	}},
	{TraitContext, "Class context", failed(loop.ErrorContext)},
	{TraitBadRequest, "Class request", failed(loop.ErrorRequest)},
	{TraitNoModel, "Class request", failed(loop.ErrorRequest)},
	{TraitWrongKey, "Class auth", failed(loop.ErrorAuth)},
	{TraitThrottled, "Class throttle", failed(loop.ErrorThrottle)},
	{TraitQuota, "Class quota", failed(loop.ErrorQuota)},
	{TraitServerError, "Class server", failed(loop.ErrorServer)},
}

func failed(class loop.ErrorClass) func(Exchange, Want) bool {
	return func(_ Exchange, w Want) bool { return w.Class == class }
}

// minReason is the length in bytes below which a reason explains nothing.
const minReason = 20

// covers checks that the adapter shows every trait, or says why its wire cannot
// have it.
func (s Suite) covers(t *testing.T) {
	known := make([]Trait, len(traits))
	for i, trait := range traits {
		known[i] = trait.name
		name, shown := s.Traits[trait.name]
		reason, absent := s.Absent[trait.name]
		switch {
		case shown && absent:
			t.Errorf("trait %q is shown by %s and declared absent: decide", trait.name, name)
		case !shown && !absent:
			t.Errorf("trait %q: name a recording in Suite.Traits (it needs %s), or say in Suite.Absent why the wire cannot have it", trait.name, trait.need)
		case absent && len(strings.TrimSpace(reason)) < minReason:
			t.Errorf("trait %q is declared absent without a reason", trait.name)
		case shown:
			want, ok := s.Want[name]
			if !ok {
				t.Errorf("trait %q: recording %s is not in Suite.Want", trait.name, name)
			} else if !trait.fits(Load(t, s.Recordings, name+".json"), want) {
				t.Errorf("trait %q: recording %s does not show it; it needs %s", trait.name, name, trait.need)
			}
		}
	}
	for _, table := range []map[Trait]string{s.Traits, s.Absent} {
		for name := range table {
			if !slices.Contains(known, name) {
				t.Errorf("trait %q does not exist", name)
			}
		}
	}
}
