package loop

import (
	"cmp"
	"fmt"
	"time"
)

// PurposeWrapUp marks the one model call that ends a run in good order: tools
// declared, none allowed.
const PurposeWrapUp = "wrap_up"

// plan is a model call that fits every budget, or the reason why none does.
type plan struct {
	purpose string
	input   int64 // upper bound, tokens
	output  int64 // cap, tokens
	results int64 // bytes of tool results that may follow
	hold    USD
	reserve USD // besides the hold, for a wrap-up after it
	refused *Tripped

	noMoney, noTokens *Tripped // the reasons, each by itself
	// shared: it fits what the accounts that the run shares have left, as far as the
	// newest refusal tells.
	shared bool
}

// The knobs that a plan may turn down when the budget gets tight, and how far.
const (
	fullResults = 64 << 10 // bytes of results that one answer's calls may bring
	minResults  = 4 << 10
	minOutput   = 256 // a work call with less output is not worth sending
	minFinal    = 64  // a wrap-up with less says nothing
)

// planCall asks the guards and sizes the next call. The trips come in order of
// precedence; with none of them, or with a wrap-up granted, the plan counts.
func (s *State) planCall(now time.Time) (plan, []Tripped) {
	if s.final != nil {
		return s.planWrapUp(now), nil
	}
	p := s.planWork()
	return p, s.trip(p, now)
}

// planWork sizes a call with tools. It holds the worst case of the call, and
// makes sure that afterwards a wrap-up could still be paid: input again, plus
// the answer, plus all results, plus the final answer.
func (s *State) planWork() plan {
	l, price := s.spec.Limits, s.chain.price()
	p := plan{input: s.inputBound(), output: l.AnswerOutput}
	if s.truncated > 0 {
		p.output *= 2 // the same question, with more room
	}
	if price.MaxOutput > 0 {
		p.output = min(p.output, price.MaxOutput)
	}
	final := int64(0)
	if s.wrapsUp() {
		final, p.results = l.FinalOutput, fullResults
	}
	p = s.fitTokens(p, final)
	free := s.spec.Limits.Cost - s.spend.committed()
	p = s.fitCost(p, final, free)
	if shared, refused := s.account.free(); refused && p.noMoney == nil {
		if q := s.fitCost(p, final, min(free, shared)); q.noMoney == nil {
			p, p.shared = q, true
		}
	}
	p.refused = cmp.Or(p.noMoney, p.noTokens)
	p.hold = price.Bound(p.input, p.output)
	return p
}

// wrapsUp reports whether a wrap-up makes sense: without tools, every call
// already is one.
func (s *State) wrapsUp() bool { return len(s.spec.Definition.Tools) > 0 }

// fitTokens turns output and results down until the token budgets hold, or
// refuses.
func (s *State) fitTokens(p plan, final int64) plan {
	l, used, wanted := s.spec.Limits, s.spend.used(), p.output
	room := func(p plan) int64 { // output that fits
		total := l.TotalTokens - used.Total() - p.input - final
		if final > 0 { // the wrap-up reads input, output and results again
			total = (total - p.input - p.results) / 2
		}
		return min(total, l.OutputTokens-used.AllOutput()-final)
	}
	if final > 0 && room(p) < p.output {
		p.results = minResults
	}
	if fits := room(p); fits < p.output {
		p.output = fits
	}
	if least := min(minOutput, wanted); p.output < least {
		p.output = least // so that the money can be judged all the same
		field := fieldTotalTokens
		if l.OutputTokens-used.AllOutput()-final < least {
			field = fieldOutputTokens
		}
		p.noTokens = &Tripped{
			Guard: "tokens", Verdict: VerdictFinalTurn, Reason: TokenBudget, Field: field,
			Observed: fmt.Sprintf("%d tokens used, next call reads up to %d", used.Total(), p.input),
			Limit:    fmt.Sprintf("%d total, %d output", l.TotalTokens, l.OutputTokens),
			Message:  "the next model call could pass the run's token budget, so it was not made",
		}
	}
	return p
}

// fitCost turns results, then output, down until the money that is free holds, or
// refuses. The formula: free >= in*i + out*o + (in+out+results)*i + final*o, with i and o
// the dearest rates that such a request can have.
func (s *State) fitCost(p plan, final int64, free USD) plan {
	price := s.chain.price()
	reserve := func(p plan) USD {
		if final == 0 {
			return 0
		}
		return price.Bound(p.input+p.output+p.results, final)
	}
	worst := func(p plan) USD { return price.Bound(p.input, p.output).plus(reserve(p)) }
	if final > 0 && worst(p) > free {
		p.results = minResults
	}
	for worst(p) > free && p.output > minOutput {
		p.output = max(minOutput, p.output/2)
	}
	if needed := worst(p); needed > free {
		p.noMoney = &Tripped{
			Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget,
			Observed: fmt.Sprintf("%s USD spent, next call with its wrap-up could cost %s USD", s.spend.cost.Total(), needed),
			Limit:    s.spec.Limits.Cost.String() + " USD",
			Message:  "the next model call could pass the run's cost budget, so it was not made",
		}
	}
	p.reserve = reserve(p)
	return p
}

// planWrapUp sizes the last call. It needs no reserve after it.
func (s *State) planWrapUp(now time.Time) plan {
	l, price := s.spec.Limits, s.chain.price()
	p := plan{purpose: PurposeWrapUp, input: s.inputBound(), output: l.FinalOutput}
	free := l.Cost - s.spend.committed()
	if price.MaxOutput > 0 {
		p.output = min(p.output, price.MaxOutput)
	}
	used := s.spend.used()
	p.output = min(p.output, l.TotalTokens-used.Total()-p.input, l.OutputTokens-used.AllOutput())
	for p.output > minFinal && price.Bound(p.input, p.output) > free {
		p.output = max(minFinal, p.output/2)
	}
	p.hold = price.Bound(p.input, p.output)
	late := s.tenure.elapsed(now) >= l.Deadline
	tooMany := s.spend.allCalls() >= l.ModelCalls || s.iterations >= l.Iterations
	if late || tooMany || s.account.refused != nil || p.output < min(minFinal, l.FinalOutput) || p.hold > free {
		t := *s.final // the trip that asked for it stays the reason; there is just no text
		p.refused = &t
	}
	return p
}

// request builds what the provider is sent.
func (s *State) request(p plan) ModelRequest {
	d := s.spec.Definition
	provider, model := SplitModel(s.chain.model())
	return ModelRequest{
		Provider: provider, Model: model, Instructions: d.Instructions, Tools: d.Tools,
		Messages: s.messagesFor(s.chain.model()), MaxOutputTokens: p.output, ToolsAllowed: p.purpose != PurposeWrapUp,
		Temperature: d.Temperature, Reasoning: d.Reasoning, CacheKey: s.run.ID, OutputSchema: s.schemaOf(p),
	}
}

// messagesFor is the transcript as one model may read it. What another model
// wrote goes without its native form: reasoning is signed for its author alone.
func (s *State) messagesFor(model string) []Message {
	messages := s.Transcript()
	for i, m := range messages {
		if m.Native != nil && m.Model != model {
			messages[i].Native = nil
		}
	}
	return messages
}

// SplitModel splits a model reference at its first slash.
func SplitModel(ref string) (provider, model string) {
	for i := range len(ref) {
		if ref[i] == '/' {
			return ref[:i], ref[i+1:]
		}
	}
	return "", ref
}
