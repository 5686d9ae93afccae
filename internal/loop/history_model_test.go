package loop_test

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// randomAnswer is a model that does everything a model was ever seen to do.
func (h *history) randomAnswer(started loop.ModelStarted) loop.ModelAnswered {
	finish := pick(h,
		loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls,
		loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls,
		loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishToolCalls, loop.FinishDone, loop.FinishDone,
		loop.FinishTruncated, loop.FinishTruncated, loop.FinishPaused, loop.FinishPaused, loop.FinishUnknown,
		loop.FinishRefused, loop.FinishContext,
	)
	switch h.mood {
	case pausing:
		finish = loop.FinishPaused
	case stubborn, circling, chanting, guessing, wordy:
		finish = loop.FinishToolCalls
	case droning:
		finish = pick(h, finish, loop.FinishDone)
	}
	m := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	if h.odds(8) {
		m.Native = &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`{"a":"<&>","n":1.0}`)}
	}
	if text := pick(h, "", "so far so good", "<b>42</b> \u2028"); text != "" {
		m.Parts = append(m.Parts, loop.TextPart(text))
	}
	if h.mood == chanting || h.mood == droning && h.odds(2) {
		m.Parts = append(m.Parts, loop.TextPart(strings.Repeat("And so it goes, on and on. ", 20)))
	}
	if finish == loop.FinishRefused {
		m.Parts = append(m.Parts, loop.Part{Kind: loop.PartRefusal, Text: "I won't"})
	}
	if finish == loop.FinishToolCalls || h.odds(8) {
		calls := h.below(6)
		if h.mood == stubborn || h.mood == circling || h.mood == guessing || h.mood == wordy {
			calls = 1
		}
		for i := range calls {
			call := h.randomCall(fmt.Sprintf("c%d-%d", started.Call, i+1))
			if h.mood == stubborn {
				call.Name, call.Args, call.Problem = "put", "{}", ""
			}
			if h.mood == wordy {
				call.Name, call.Args, call.Problem = pick(h, "look", "look", "look", "mail"), fmt.Sprintf(`{"a":%d}`, started.Call), ""
			}
			if h.mood == guessing {
				call.Name, call.Args, call.Problem = "put", fmt.Sprintf(`{"a":%d}`, started.Call), ""
			}
			if h.mood == circling {
				call.Name, call.Args, call.Problem = "put", fmt.Sprintf(`{"a":%d}`, h.around(started.Call)), ""
			}
			m.Parts = append(m.Parts, loop.Part{Kind: loop.PartToolCall, Call: &call})
		}
	}
	answered := loop.ModelAnswered{Call: started.Call, Message: m, Finish: finish, Usage: h.randomUsage(started)}
	answered.Cost, answered.Chant = h.state.Price().Cost(answered.Usage), loop.TextLoopIn(m, finish)
	if h.odds(12) { // the provider reports nothing: charged at the hold
		answered.Usage, answered.Estimated, answered.Cost = loop.Usage{}, true, loop.Cost{Output: started.Hold}
	}
	return answered
}

// around is the next of a few things in turn, and sometimes out of turn.
func (h *history) around(call int) int {
	if h.odds(12) {
		return h.below(3)
	}
	return call % 2
}

// randomCall makes calls that often repeat each other, sometimes with their keys
// in another order.
func (h *history) randomCall(id string) loop.ToolCall {
	c := loop.ToolCall{
		ID: id, ProviderID: pick(h, "toolu_1", "", "toolu_2"),
		Name: pick(h, "look", "put", "look", "mail", "put", "refund", "mail", "look", "refund", "vague", "nope",
			"mail", "look", "ask", "pay", "wait", "team", "team"),
		Args: pick(h, `{"a":1,"b":2}`, `{"b":2,"a":1}`, `{"a":2}`, `{"a":9007199254740993}`, `{"a":9007199254740992}`),
	}
	if h.odds(32) {
		c.Name = "finish"
	}
	if c.Name == "wait" {
		c.Args = pick(h, `{"seconds":30}`, `{"tool":"look","seconds":600,"every_seconds":60}`, `{}`)
	}
	if c.Name == "put" && h.odds(8) {
		c.Approval = "args.a > 1"
	}
	if h.odds(12) {
		c.Args, c.Problem = `{"a":`, "not JSON: ends too early"
	}
	return c
}

// tokens is what a tokenizer makes of the transcript, if it is real text.
func (h *history) tokens() int64 {
	bytes := 4000
	for _, m := range h.state.Transcript() {
		for _, p := range m.Parts {
			bytes += len(p.Text)
			if p.Result != nil {
				bytes += len(p.Result.Content)
			}
		}
	}
	return int64(bytes / 3)
}

// randomUsage is at most what was planned for, and often exactly that.
func (h *history) randomUsage(started loop.ModelStarted) loop.Usage {
	in, out := started.InputBound, started.MaxOutput
	if h.mood == wordy {
		in, out = min(in, h.tokens()), min(out, 50)
	} else if !h.odds(4) {
		in, out = in*int64(h.throw()+1)/64, out*int64(h.throw()+1)/64
	}
	var u loop.Usage
	*pick(h, &u.InputUncached, &u.CacheWrite5m, &u.CacheWrite1h) = in / 3
	u.CacheRead = in - u.Input()
	u.Reasoning = out / pick[int64](h, 2, 1, 5)
	u.Output = out - u.Reasoning
	return u
}
