package loop

import "slices"

// rewritten is what a transcript keeps of itself when it is made shorter: what the
// model no longer reads, and what is still known of its size.
type rewritten struct {
	said     []Message // all that was ever said; nil: messages has it all
	rewrites int

	// The messages before rewrittenAt are at most ceiling tokens, and likely about
	// so many. Zero: nothing is known.
	ceiling     int64
	likely      int64
	rewrittenAt int
}

// tell keeps a message beside a transcript that no longer has everything.
func (t *transcript) tell(m Message) {
	if t.said != nil {
		t.said = append(t.said, m)
	}
}

// everything is all that was ever said, in order. Do not change it.
func (t *transcript) everything() []Message {
	if t.said != nil {
		return t.said
	}
	return t.messages
}

// note keeps a message that is for people only.
func (t *transcript) note(m Message) {
	if t.said == nil {
		t.said = slices.Clone(t.messages)
	}
	t.said = append(t.said, m)
}

// rewrite puts other messages in the place of those that were. What was counted
// counts no more. But the messages that stay are no more tokens than all of them
// were, so bound, which is of all of them and of what is new, still bounds them.
func (t *transcript) rewrite(messages []Message, bound, likely int64) {
	t.messages, t.bounds = messages, t.boundsOf(messages)
	t.anchor, t.anchorAt, t.counted, t.countedAt = 0, 0, 0, 0
	t.ceiling, t.likely, t.rewrittenAt = bound, likely, len(messages)
	t.rewrites++
}

func (t *transcript) boundsOf(messages []Message) []int64 {
	bounds := make([]int64, len(messages))
	for i, m := range messages {
		bounds[i] = messageBound(m, t.imageBound)
	}
	return bounds
}

// Messages is all that was said in the run, in order: also what the model no longer
// reads since the transcript was made shorter, and what stands for it. The parts
// are shared: do not change them.
func (s *State) Messages() []Message { return slices.Clone(s.talk.everything()) }

// Rewrites counts how often what the model had read was replaced by something
// shorter. What is derived from the transcript, such as its encoding, holds for one
// number only.
func (s *State) Rewrites() int { return s.talk.rewrites }
