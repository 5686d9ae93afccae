package loop

import (
	"encoding/json"
	"fmt"
	"time"
)

// Purposes of model calls beside the conversation. They are held and settled as
// any other, and make no iteration.
const (
	PurposeSummary = "summary" // shortens the transcript
	PurposeJudge   = "judge"   // judges the final answer
)

// beside reports whether calls of the purpose are no part of the conversation.
func beside(purpose string) bool { return purpose == PurposeSummary || purpose == PurposeJudge }

// Beside reports whether the call is no part of the conversation, and so makes no
// iteration.
func (b ModelStarted) Beside() bool { return beside(b.Purpose) }

// LastCall is the newest model call that ended, zero before the first.
func (s *State) LastCall() ModelStarted { return s.spend.last }

// aside is what came of the newest call beside the conversation, until something
// is made of it.
type aside struct {
	purpose string
	finish  Finish
	text    string
	failed  *ModelFailed // no answer came, and the call is not tried again
}

// asideCall is a call to be made beside the conversation.
type asideCall struct {
	purpose      string
	model        string // "provider/model"
	instructions string
	messages     []Message
	output       int64 // cap, tokens
	temperature  *float64
	schema       json.RawMessage // of the answer
}

// takeAside returns what came of a call of the purpose, or nil.
func (s *State) takeAside(purpose string) *aside {
	f := s.spend.failed
	switch {
	case f != nil && s.spend.failedPurpose == purpose && f.Class != ErrorCancelled && !s.retryable(f):
		return &aside{purpose: purpose, failed: f}
	case s.besides != nil && s.besides.purpose == purpose:
		return s.besides
	}
	return nil
}

// sidePrice is the row of a model that is called beside the conversation.
func (s *State) sidePrice(model string) (Price, bool) {
	if p, ok := s.spec.SidePrices[model]; ok {
		return p, true
	}
	for i, m := range s.chain.models {
		if m == model {
			return s.chain.prices[i], true
		}
	}
	return Price{}, false
}

// callAside is the action that makes the call, or the trips that say which budgets
// have no room for it: its worst case and a wrap-up after it must fit.
func (s *State) callAside(c asideCall, now time.Time) (Action, []Tripped) {
	price, known := s.sidePrice(c.model)
	if !known {
		return nil, []Tripped{{
			Guard: "cost", Reason: CostUnpriced, Observed: c.model, Message: "the model has no price, so that its cost cannot be bounded",
		}}
	}
	input := int64(hiddenPrompt + blockFraming + len(c.instructions))
	for _, m := range c.messages {
		input += messageBound(m, maxImageTokens)
	}
	likely := (input-hiddenPrompt)/bytesPerToken + hiddenPrompt // one that is larger is refused unpaid
	if c.model == s.chain.model() {                             // whose provider may have counted more than bytes
		input = s.talk.stretched(input)
	}
	if price.MaxOutput > 0 {
		c.output = min(c.output, price.MaxOutput)
	}
	if a := s.waitForAccount(now); a != nil {
		return a, nil
	}
	p := plan{purpose: c.purpose, input: min(input, price.Window), output: c.output, hold: price.Bound(min(input, price.Window), c.output)}
	if s.account.refused != nil {
		return nil, []Tripped{*s.accountTrip(now)}
	}
	if refused := s.fitAside(&p, likely > price.Window-c.output); refused != nil {
		return nil, refused
	}
	started := ModelStarted{
		Call: s.spend.calls + 1, Purpose: p.purpose, Model: c.model,
		MaxOutput: p.output, InputBound: p.input, Hold: p.hold, Reserve: p.reserve, PriceVersion: price.Version,
	}
	provider, model := SplitModel(c.model)
	request := ModelRequest{
		Provider: provider, Model: model, Instructions: c.instructions, Messages: c.messages,
		MaxOutputTokens: p.output, CacheKey: s.run.ID, Temperature: c.temperature, OutputSchema: c.schema,
	}
	return CallModel{intent{[]Body{started}}, request, started, price, s.workDeadline(now)}, nil
}

// fitAside checks a call beside the conversation against every budget, with the
// wrap-up that must stay possible after it. It returns a trip for each without room.
func (s *State) fitAside(p *plan, tooLarge bool) []Tripped {
	l, used := s.spec.Limits, s.spend.used()
	if s.wrapsUp() {
		p.reserve = s.chain.price().Bound(s.inputBound(), l.FinalOutput)
	}
	var refused []Tripped
	if tooLarge {
		refused = append(refused, Tripped{Guard: "context", Reason: ContextWindow, Message: fmt.Sprintf("the %s call is larger than the model's context window", p.purpose)})
	}
	if s.spend.allCalls()+2 > l.ModelCalls {
		refused = append(refused, Tripped{Guard: "model_calls", Reason: ModelCallCap, Observed: fmt.Sprint(s.spend.allCalls()), Limit: fmt.Sprint(l.ModelCalls), Message: "no model call is left for it"})
	}
	for _, tokens := range []struct {
		field string
		short bool
	}{
		{fieldTotalTokens, used.Total()+p.input+p.output+s.inputBound()+l.FinalOutput > l.TotalTokens},
		{fieldOutputTokens, used.AllOutput()+p.output+l.FinalOutput > l.OutputTokens},
	} {
		if tokens.short {
			refused = append(refused, Tripped{Guard: "tokens", Reason: TokenBudget, Field: tokens.field, Observed: fmt.Sprintf("%d tokens used", used.Total()), Limit: fmt.Sprintf("%d total, %d output", l.TotalTokens, l.OutputTokens), Message: "no tokens are left for it"})
		}
	}
	if p.hold.plus(p.reserve) > l.Cost-s.spend.committed() {
		refused = append(refused, Tripped{Guard: "cost", Reason: CostBudget, Observed: fmt.Sprintf("%s USD spent, it could cost %s USD", s.spend.cost.Total(), p.hold), Limit: l.Cost.String() + " USD", Message: "no money is left for it"})
	}
	return refused
}

// afterAside decides what follows the failure of a call beside the conversation:
// it is tried again as any other, but no other model is asked instead. When it is
// not tried again, takeAside has it.
func (s *State) afterAside(f *ModelFailed, now time.Time) Action {
	if end := s.workEnd(now); s.retryable(f) && f.RetryAt.After(now) && now.Before(end) {
		return Sleep{Until: s.inLifetime(earliest(f.RetryAt, end)), Reason: WaitBackoff}
	}
	return nil
}

// dropAside forgets what came of the newest call beside the conversation: something
// has been made of it.
func (s *State) dropAside() {
	s.besides = nil
	if beside(s.spend.failedPurpose) {
		s.spend.failed, s.spend.failures = nil, 0
	}
}
