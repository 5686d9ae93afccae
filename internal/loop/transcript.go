package loop

import (
	"slices"
	"strings"
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

	// The same, as the provider's counting endpoint said. Asked at most once for
	// each length of the transcript.
	counted   int64
	countedAt int

	// excess is how many times more tokens than bytes a provider has counted, at
	// least 1: its hidden prompt or its tokenizer is not what the bound assumes.
	excess float64

	imageBound int64 // the most that an image counts, tokens

	rewritten // what is left of it when it was made shorter
}

// add appends a message and notes where in the run it stands.
func (t *transcript) add(m Message, seq int64, iteration int, at time.Time) {
	m.Seq, m.Iteration, m.At = seq, iteration, at
	t.messages = append(t.messages, m)
	t.bounds = append(t.bounds, messageBound(m, t.imageBound))
	t.tell(m)
}

// anchorHere notes that a provider counted all messages so far, its last answer
// included, as tokens.
func (t *transcript) anchorHere(tokens int64) {
	t.anchor, t.anchorAt = tokens, len(t.messages)
}

// learn notes what a provider counted as the input that was bounded by so much.
func (t *transcript) learn(counted, bound int64) {
	if counted > bound && bound > 0 {
		t.excess = max(t.excess, float64(counted)/float64(bound))
	}
}

// stretched is a bound by bytes for a provider that counts more than bytes.
func (t *transcript) stretched(bound int64) int64 {
	if t.excess <= 1 {
		return bound
	}
	return int64(float64(bound)*t.excess) + 1
}

// applyCounted notes what the counting endpoint said of all messages so far.
func (t *transcript) applyCounted(e InputCounted) {
	t.counted, t.countedAt = e.Tokens, len(t.messages)
}

// forgetCounts drops what was counted: another model counts otherwise.
func (t *transcript) forgetCounts() {
	t.anchor, t.anchorAt, t.counted, t.countedAt, t.excess = 0, 0, 0, 0, 0
	t.ceiling, t.likely, t.rewrittenAt = 0, 0, 0
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
	for _, m := range slices.Backward(t.everything()) {
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

	// maxImageTokens is for models whose row does not say. The dearest known is
	// gpt-4o-mini: 2,833 + 5,667 for each of at most 8 tiles.
	maxImageTokens = 48_169
	// anyDocument stands for a document: its bytes are compressed, so they bound
	// nothing, and only the context window does.
	anyDocument = 1 << 40
)

// imageBound is the most that an image counts with any of the models.
func imageBound(prices []Price) int64 {
	var most int64
	for _, p := range prices {
		n := p.ImageTokens
		if n == 0 {
			n = maxImageTokens
		}
		most = max(most, n)
	}
	return most
}

// mediaBound is never less than the tokens a provider counts for m.
func mediaBound(kind PartKind, m Media, image int64) int64 {
	switch {
	case kind == PartImage:
		return image
	case strings.HasPrefix(m.Type, "text/") && m.URL == "":
		return int64(len(m.Data) + len(m.Name))
	}
	return anyDocument
}

// messageBound is never less than the tokens a provider counts for m; image is
// the most that an image counts.
func messageBound(m Message, image int64) int64 {
	var n int64 = blockFraming
	for _, p := range m.Parts {
		n += blockFraming + int64(len(p.Text))
		if p.Call != nil {
			n += int64(len(p.Call.Name) + len(p.Call.Args) + len(p.Call.ID) + len(p.Call.ProviderID))
		}
		if p.Result != nil {
			n += int64(len(p.Result.Content) + len(p.Result.CallID) + len(p.Result.ProviderID))
		}
		if p.Media != nil {
			n += mediaBound(p.Kind, *p.Media, image)
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

// The margin on a provider's own count, which its documentation calls an estimate.
const (
	countedShare   = 20 // one part in so many
	countedFraming = 64
)

// inputBound is an upper bound of the tokens that the next request reads: what a
// provider has counted plus the bytes since, or all bytes, and never more than
// the window, since a larger request is refused unpaid.
func (s *State) inputBound() int64 { return min(s.transcriptBound(), s.chain.price().Window) }

// transcriptBound is the same for a window without end.
func (s *State) transcriptBound() int64 {
	t := &s.talk
	schema := s.schemaBound()
	bound := t.stretched(prefixBound(s.spec.Definition) + schema + t.since(0))
	if t.anchor > 0 {
		bound = min(bound, t.anchor+t.stretched(t.since(t.anchorAt)+anchoredFraming))
	}
	if t.counted > 0 {
		bound = min(bound, t.counted+t.counted/countedShare+t.stretched(countedFraming+schema+t.since(t.countedAt))) // it counts no schema
	}
	if t.ceiling > 0 {
		bound = min(bound, t.ceiling+t.stretched(t.since(t.rewrittenAt)))
	}
	return bound
}

// mayCount reports whether the counting endpoint is to be asked now.
func (s *State) mayCount() bool {
	return s.spec.Limits.CountInput && s.final == nil && s.talk.countedAt != len(s.talk.messages) && s.talk.anchorAt != len(s.talk.messages)
}

// inputEstimate is the likely size of the next request, for the context guard. A
// document whose size nobody has counted yet is left out: the provider refuses
// it, unpaid, if it is too large.
func (s *State) inputEstimate() int64 {
	t := &s.talk
	var from int
	var size int64
	switch {
	case t.anchor > 0:
		from, size = t.anchorAt, t.anchor
	case t.counted > 0:
		from, size = t.countedAt, t.counted
	case t.likely > 0:
		from, size = t.rewrittenAt, t.likely
	default:
		size = s.prefixEstimate()
	}
	return size + estimateOf(t.bounds[from:])
}

// prefixEstimate is the likely size of what goes ahead of the transcript.
func (s *State) prefixEstimate() int64 {
	return (prefixBound(s.spec.Definition)+s.schemaBound()-hiddenPrompt)/bytesPerToken + hiddenPrompt
}

// estimateOf is the likely size of messages with these bounds.
func estimateOf(bounds []int64) int64 {
	var size int64
	for _, b := range bounds {
		size += b % anyDocument / bytesPerToken
	}
	return size
}
