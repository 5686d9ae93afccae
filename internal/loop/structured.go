package loop

import "encoding/json"

// schemaFraming is what a provider says around the schema that it shows to the
// model, tokens. Anthropic adds a system prompt of its own, of a few hundred.
const schemaFraming = 512

// outputSchema is the JSON Schema that calls of the conversation ask the provider to
// keep the model to: the agent's, where the price book knows that the model can. It
// is the same for every call of a run with one model, since providers put it in
// front of what their caches hold.
//
// The wrap-up is asked for in words instead. It is to say what is missing and what
// was changed, which a schema for a complete answer has no room for: held to it, a
// model makes something up. At Anthropic it reads no cached messages anyway, since
// forbidding calls loses those; elsewhere it is one call at the full price, which
// is what is reserved for it.
func (s *State) outputSchema() json.RawMessage {
	if !s.chain.price().Structured || s.plainSince > 0 {
		return nil
	}
	return s.spec.Definition.OutputSchema
}

// schemaBound bounds what the provider reads because of the schema, tokens.
func (s *State) schemaBound() int64 {
	if n := len(s.outputSchema()); n > 0 {
		return int64(n) + schemaFraming
	}
	return 0
}

// notePlain takes note of a refused request that held the model to a schema: the
// run goes on without. A provider's word for what it can do and what it takes are
// two things, and the answer is checked in any case. call is the one that failed.
func (s *State) notePlain(call *ModelStarted, b ModelFailed) {
	if call != nil && call.Purpose == "" && b.Class == ErrorRequest && s.outputSchema() != nil {
		s.plainSince = b.Call
	}
}
