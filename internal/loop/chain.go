package loop

import "fmt"

// chain is the models that a run may use, best first, and the one in use. A run
// never goes back to an earlier one: the model that failed would be paid again
// for a prompt cache that has gone cold.
type chain struct {
	models []string
	prices []Price // one for each model
	at     int

	refusal bool // a refusal has moved it once: another one ends the run
}

func newChain(s Spec) chain {
	c := chain{models: []string{s.Definition.Model}, prices: []Price{s.Price}}
	for i, p := range s.FallbackPrices {
		if i < len(s.Definition.Fallbacks) { // a model without a price is never called
			c.models, c.prices = append(c.models, s.Definition.Fallbacks[i]), append(c.prices, p)
		}
	}
	return c
}

func (c *chain) model() string { return c.models[c.at] }

func (c *chain) price() Price { return c.prices[c.at] }

// applyFellBack moves to a later model.
func (c *chain) applyFellBack(e FellBack) error {
	for i := c.at + 1; i < len(c.models); i++ {
		if c.models[i] == e.To && c.models[c.at] == e.From {
			c.at = i
			c.refusal = c.refusal || e.Class == ""
			return nil
		}
	}
	return fmt.Errorf("falls back from %q to %q, models %v at %d: %w", e.From, e.To, c.models, c.at, ErrImpossible)
}

// next is the model to fall back to after a failure of the class, or "". What is
// wrong with an account, or closed to a provider, is so for all of its models.
func (c *chain) next(class ErrorClass, code string) string {
	failed, _ := SplitModel(c.model())
	elsewhere := class == ErrorQuota || code == CodeCircuitOpen
	for _, m := range c.models[c.at+1:] {
		if provider, _ := SplitModel(m); !elsewhere || provider != failed {
			return m
		}
	}
	return ""
}

// fallBack goes on with another model when the one in use cannot answer, or is
// nil when there is none to go on with.
func (s *State) fallBack(class ErrorClass, code, message string) Action {
	to := s.chain.next(class, code)
	if to == "" {
		return nil
	}
	fell := FellBack{From: s.chain.model(), To: to, Class: class, Message: message}
	if s.talk.last().Role == RoleAssistant { // a paused answer, which only its own model can continue
		fell.Say = "Your answer was interrupted. Go on from where it ends."
	}
	return Record{intent: intent{[]Body{fell}}}
}

// applyFellBack starts over with the request, not with the run: the budgets keep
// what was spent. What the model before had counted and signed is worth nothing
// to the next.
func (s *State) applyFellBack(b FellBack, e Event) error {
	if err := s.chain.applyFellBack(b); err != nil {
		return err
	}
	s.answer = nil
	s.spend.failed, s.spend.failures = nil, 0
	s.talk.forgetCounts()
	if b.Say != "" {
		s.talk.add(guardMessage(b.Say), e.Seq, s.iterations, e.At)
	}
	return nil
}

// CanFallBack reports whether another provider's model could be asked instead.
func (s *State) CanFallBack() bool { return s.chain.next(ErrorServer, CodeCircuitOpen) != "" }

// Model is the reference of the model in use.
func (s *State) Model() string { return s.chain.model() }

// Price is the row of the model in use.
func (s *State) Price() Price { return s.chain.price() }
