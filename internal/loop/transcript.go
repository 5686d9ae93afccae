package loop

import (
	"slices"
	"time"
)

// transcript is what the model has been told and has said, with a running upper
// bound of its size in tokens.
type transcript struct {
	messages []Message
	bounds   []int64 // of each message, tokens

	// The anchor: a provider has counted everything before message anchorAt as
	// anchor tokens. Zero: nothing is counted yet.
	anchor   int64
	anchorAt int
}

// add appends a message and notes where in the run it stands.
func (t *transcript) add(m Message, seq int64, iteration int, at time.Time) {
	m.Seq, m.Iteration, m.At = seq, iteration, at
	t.messages = append(t.messages, m)
	t.bounds = append(t.bounds, messageBound(m))
}

// anchorHere notes that a provider counted all messages so far, its last answer
// included, as tokens.
func (t *transcript) anchorHere(tokens int64) {
	t.anchor, t.anchorAt = tokens, len(t.messages)
}

// last is the newest message, or the zero Message.
func (t *transcript) last() Message {
	if len(t.messages) == 0 {
		return Message{}
	}
	return t.messages[len(t.messages)-1]
}

// lastAssistantText is the newest thing that the model said, for a partial answer.
func (t *transcript) lastAssistantText() string {
	for _, m := range slices.Backward(t.messages) {
		if m.Role == RoleAssistant && m.Text() != "" {
			return m.Text()
		}
	}
	return ""
}

// since sums the bounds of the messages from index i on.
func (t *transcript) since(i int) int64 {
	var n int64
	for _, b := range t.bounds[i:] {
		n += b
	}
	return n
}

// The parts of the input bound. A byte-level tokenizer never makes more tokens
// than there are UTF-8 bytes; framing and the providers' hidden tool prompt
// (290 to 804 tokens observed) come on top.
const (
	blockFraming    = 16
	toolFraming     = 64
	hiddenPrompt    = 1024
	bytesPerToken   = 3 // for estimates only, never for proof: real text has 3.5 to 4
	anchoredFraming = 64
)

// messageBound is never less than the tokens a provider counts for m.
func messageBound(m Message) int64 {
	var n int64 = blockFraming
	for _, p := range m.Parts {
		n += blockFraming + int64(len(p.Text))
		if p.Call != nil {
			n += int64(len(p.Call.Name) + len(p.Call.Args) + len(p.Call.ID) + len(p.Call.ProviderID))
		}
		if p.Result != nil {
			n += int64(len(p.Result.Content) + len(p.Result.CallID) + len(p.Result.ProviderID))
		}
	}
	if m.Native != nil {
		n = max(n, blockFraming+int64(len(m.Native.JSON)))
	}
	return n
}

// prefixBound bounds the static prefix: instructions and tools.
func prefixBound(a AgentSpec) int64 {
	n := int64(hiddenPrompt + blockFraming + len(a.Instructions))
	for _, t := range a.Tools {
		n += int64(toolFraming + len(t.Name) + len(t.Description) + len(t.Schema))
	}
	return n
}

// inputBound is an upper bound of the tokens that the next request reads: what a
// provider has counted plus the bytes since, or all bytes.
func (s *State) inputBound() int64 {
	all := prefixBound(s.spec.Definition) + s.talk.since(0)
	if s.talk.anchor == 0 {
		return all
	}
	return min(all, s.talk.anchor+s.talk.since(s.talk.anchorAt)+anchoredFraming)
}

// inputEstimate is the likely size of the next request, for the context guard.
func (s *State) inputEstimate() int64 {
	if s.talk.anchor == 0 {
		return (prefixBound(s.spec.Definition)-hiddenPrompt+s.talk.since(0))/bytesPerToken + hiddenPrompt
	}
	return s.talk.anchor + s.talk.since(s.talk.anchorAt)/bytesPerToken
}
