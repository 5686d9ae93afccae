package loop

import "encoding/json"

// answerOf is the final answer that a finished batch brought by itself: what the
// model gave to the built-in finish, or what a child run answered for it. An agent
// without an output contract finishes with a text.
func (s *State) answerOf(calls []*call) (string, bool) {
	for _, c := range calls {
		switch {
		case c.State != CallSucceeded:
		case c.spec.Builtin == BuiltinFinish:
			args := c.asSent().Args
			var plain struct {
				Answer string `json:"answer"`
			}
			if len(s.spec.Definition.OutputSchema) == 0 && json.Unmarshal([]byte(args), &plain) == nil && plain.Answer != "" {
				return plain.Answer, true
			}
			return args, true
		case c.child != nil && c.spec.Child.HandOver:
			return c.child.answer, true
		}
	}
	return "", false
}

// finishing is the call with which the model gives its final answer, or nil. Its
// siblings are not started: nobody would read their results.
func finishing(open []*call) *call {
	for _, c := range open {
		if c.State == CallPlanned && c.known && c.skip == "" && c.Call.Problem == "" && c.spec.Builtin == BuiltinFinish {
			return c
		}
	}
	return nil
}

// finish takes the final answer: begun and finished in one record, since nothing
// is sent.
func (g *gate) finish(c *call) {
	g.ended = append(g.ended,
		CallBegun{CallID: c.Call.ID, Attempt: c.Attempt + 1, Key: c.Call.Key(g.s.run)},
		CallFinished{
			CallID: c.Call.ID, Attempt: c.Attempt + 1, Outcome: OutcomeOK, Content: "The answer was taken.",
			ResultHash: digest("result", "ok", "finish"),
		})
}
