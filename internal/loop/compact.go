package loop

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The bounds of compaction, so that it cannot become a loop of its own: each one
// must free a fifth of the request, and what only clears results also a tenth of
// the window, because it rewrites the prompt cache for a while only.
const (
	keptIterations = 3  // the newest, which are never touched
	leastFreed     = 5  // of the request, one part in so many
	leastCleared   = 10 // of the window, one part in so many
)

// compaction is what was done in the run to make the transcript shorter.
type compaction struct {
	tried   int  // failed ones included
	failed  bool // the newest one
	at      int  // iterations by then: the next one needs another
	summary string
	// The message of event seq stands for those of the events from first on. 0: none does.
	seq, first int64

	// overflow is why the request is larger than the window, when the provider found
	// that out; nil since it has been answered or made shorter.
	overflow *Tripped
}

// compact makes the transcript shorter when it fills too much of the window, or is
// nil when there is no need or no way. When a provider has refused the request as
// too large and there is no way, the run ends.
func (s *State) compact(now time.Time) Action {
	if s.final != nil {
		return nil
	}
	if a := s.tryCompact(now); a != nil {
		return a
	}
	if s.compaction.overflow == nil || s.pausesNow(now) {
		return nil
	}
	t := *s.compaction.overflow
	if s.compaction.tried > 0 {
		t.Reason, t.Message = CompactionStuck, "the transcript could not be made short enough: "+t.Message
	}
	return s.stopOn(t)
}

func (s *State) tryCompact(now time.Time) Action {
	if a := s.takeAside(PurposeSummary); a != nil {
		return Record{intent: intent{[]Body{s.summarised(*a)}}}
	}
	if !s.mayCompact(now) {
		return nil
	}
	from, to := s.older()
	floor := s.sizeAfter(s.summedUp(from, to, ""))
	if estimateOf(s.talk.bounds[from:to]) < minSummary || !s.frees(floor) || s.crowded(floor) {
		return nil // there is next to nothing to leave out, or what must stay is too much by itself
	}
	mild := s.clearing(from, to)
	if mild != nil && !s.crowded(mild.After) {
		return Record{intent: intent{[]Body{*mild}}}
	}
	return s.summarise(from, to, mild, now)
}

// mayCompact reports whether there is a need, and a try left.
func (s *State) mayCompact(now time.Time) bool {
	l, c := s.spec.Limits, &s.compaction
	switch {
	case l.CompactAt == 0 || c.tried >= l.Compactions || c.tried > 0 && c.at == s.iterations:
		return false
	case c.overflow == nil && !s.crowded(s.inputEstimate()):
		return false
	}
	return s.workDeadline(now).After(now) && !s.endsAnyway(now)
}

// crowded reports whether a request of the likely size, with its answer, fills more
// of the window than a run should. Just before a run would be wrapped up is the
// last moment to do something about it.
func (s *State) crowded(size int64) bool {
	l := s.spec.Limits
	at := min(l.CompactAt, l.StopAt) * float64(s.chain.price().Window)
	return float64(size+min(l.AnswerOutput, l.FinalOutput)) > at
}

// endsAnyway reports whether a guard that no shorter transcript would change is
// about to end or pause the run. A budget that wants it to wait does neither: the call
// that makes the transcript shorter waits for it as any other.
func (s *State) endsAnyway(now time.Time) bool {
	_, trips := s.planCall(now)
	return slices.ContainsFunc(trips, func(t Tripped) bool {
		waits := t.Guard == guardOfAccounts && s.waitForAccount(now) != nil
		return t.Verdict != VerdictNudge && !waits && !slices.Contains([]string{"context", "cost", "tokens"}, t.Guard)
	})
}

// pausesNow reports whether a guard is about to pause the run: what is too large is
// looked at again when it goes on.
func (s *State) pausesNow(now time.Time) bool {
	_, trips := s.planCall(now)
	return len(trips) > 0 && trips[0].Verdict == VerdictPause
}

// older is the part of the transcript that may be left out, messages[from:to]: all
// before the newest iterations, but for the input. It begins and ends between
// iterations, so that no call is parted from its result.
func (s *State) older() (from, to int) {
	m := s.talk.messages
	for to < len(m) && m[to].Iteration <= s.iterations-keptIterations {
		to++
	}
	for from < to && m[from].ofUser() {
		from++
	}
	return from, to
}

// ofUser reports whether the message has the words of a user, which are never left
// out.
func (m Message) ofUser() bool {
	return m.Role == RoleUser && m.Source != SourceTool && m.Source != SourceGuard
}

// sizeAfter is the likely size of the next request with another transcript. Where a
// provider has counted the one that is, what it counted is scaled.
func (s *State) sizeAfter(messages []Message) int64 {
	prefix := s.prefixEstimate()
	now, then := prefix+estimateOf(s.talk.bounds), prefix+estimateOf(s.talk.boundsOf(messages))
	return int64(float64(s.inputEstimate()) * float64(then) / float64(now))
}

// frees reports whether a request of that size is enough of a gain.
func (s *State) frees(after int64) bool {
	before := s.inputEstimate()
	return before-after >= before/leastFreed
}

// clearing is the compaction that leaves out old results of calls that change
// nothing, or nil if that frees too little.
func (s *State) clearing(from, to int) *Compacted {
	c := Compacted{Method: CompactClear, Before: s.inputEstimate()}
	for _, m := range s.talk.messages[from:to] {
		for _, p := range m.Parts {
			if p.Result != nil && len(p.Result.Content) > len(s.cleared(p.Result.CallID)) && s.calls.byID[p.Result.CallID].clearable() {
				c.Cleared = append(c.Cleared, p.Result.CallID)
			}
		}
	}
	c.After = s.sizeAfter(s.without(c.Cleared))
	if !s.frees(c.After) || c.Before-c.After < s.chain.price().Window/leastCleared {
		return nil
	}
	return &c
}

// clearable reports whether the call's result can be had again, or does not matter
// any more. What a person or another agent said cannot.
func (c *call) clearable() bool {
	return c.Effect == ReadOnly && c.child == nil && c.spec.Builtin != BuiltinAskHuman && c.spec.Builtin != BuiltinFinish
}

// cleared is what the model reads in place of a result.
func (s *State) cleared(callID string) string {
	c := s.calls.byID[callID]
	again := "Make the call again if you need it."
	if tool := s.readsResults(); tool != "" {
		again = readOn(tool, callID, 0)
	}
	return fmt.Sprintf("[left out by loopd to save room: a result of %d bytes. %s]", max(c.Bytes, int64(len(c.content()))), again)
}

// without is the transcript without the results of some calls.
func (s *State) without(ids []string) []Message {
	messages := slices.Clone(s.talk.messages)
	for i, m := range messages {
		for j, p := range m.Parts {
			if p.Result == nil || !slices.Contains(ids, p.Result.CallID) {
				continue
			}
			if &messages[i].Parts[0] == &m.Parts[0] { // shared so far
				messages[i].Parts = slices.Clone(m.Parts)
			}
			result := *p.Result
			result.Content = s.cleared(result.CallID)
			messages[i].Parts[j].Result = &result
		}
	}
	return messages
}

// summedUp is the transcript with one message in the place of messages[from:to].
// The words of users among them stay.
func (s *State) summedUp(from, to int, summary string) []Message {
	old := s.talk.messages
	if from == to {
		return slices.Clone(old)
	}
	m := guardMessage(s.recap(summary))
	m.Iteration = old[to-1].Iteration
	messages := append(slices.Clone(old[:from]), m)
	for _, kept := range old[from:to] {
		if kept.ofUser() {
			messages = append(messages, kept)
		}
	}
	return append(messages, old[to:]...)
}

// summarise has a model sum up what is old. When that cannot be paid for, clearing
// results is still better than nothing; and where nothing would end the run, because
// the request does not fit the window as it is, it may wait for a raise.
func (s *State) summarise(from, to int, mild *Compacted, now time.Time) Action {
	var refused []Tripped
	for _, room := range summaryRooms() {
		a, t := s.callAside(s.summaryCall(from, to, room), now)
		if t == nil {
			return a
		}
		refused = t
	}
	if mild != nil {
		return Record{intent: intent{[]Body{*mild}}}
	}
	if s.compaction.overflow != nil {
		if a := s.pauseAside(PurposeSummary, refused, now); a != nil {
			return a
		}
	}
	return Record{intent: intent{[]Body{s.uncompacted("the summary was not made: " + refused[0].Message)}}}
}

// uncompacted is the record of a try that brought nothing.
func (s *State) uncompacted(why string) Compacted {
	size := s.inputEstimate()
	return Compacted{Method: CompactSummarize, Before: size, After: size, Failure: why}
}

// summarised is what becomes of a summary: it takes the place of what is old, if it
// is whole and worth it.
func (s *State) summarised(a aside) Compacted {
	from, to := s.older()
	text := strings.TrimSpace(a.text)
	switch {
	case a.failed != nil:
		return s.uncompacted(fmt.Sprintf("the summary failed (%s): %s", a.failed.Class, excerpt(a.failed.Message, evidenceExcerpt)))
	case a.finish != FinishDone:
		return s.uncompacted(fmt.Sprintf("the summary ended as %q, so it may not be whole", a.finish))
	case text == "":
		return s.uncompacted("the summary is empty")
	case s.HearsTextLoops() && ChantIn(text) != "":
		return s.uncompacted("the summary goes round in circles")
	case from == to:
		return s.uncompacted("there is nothing to sum up any more")
	}
	c := Compacted{
		Method: CompactSummarize, Before: s.inputEstimate(), After: s.sizeAfter(s.summedUp(from, to, text)),
		FromSeq: s.firstSeq(s.talk.messages[from]), ToSeq: s.talk.messages[to-1].Seq, Summary: text,
	}
	if !s.frees(c.After) {
		return s.uncompacted(fmt.Sprintf("the summary is too long: the next request would go from about %d to %d tokens", c.Before, c.After))
	}
	return c
}

// applyCompacted replaces what the model reads. The journal, the ledger of calls and
// the footprints of the iterations stay as they are.
func (s *State) applyCompacted(b Compacted, e Event) error {
	messages, err := s.compacted(b)
	if err != nil {
		return err
	}
	s.dropAside()
	c := &s.compaction
	c.tried, c.failed, c.at = c.tried+1, b.Failure != "", s.iterations
	if messages == nil {
		s.remark(e, "The transcript could not be made shorter: "+b.Failure+".")
		return nil
	}
	var fresh int64
	for i, m := range messages {
		if m.Seq == 0 || b.Method == CompactClear && changed(m, s.talk.messages[i]) {
			fresh += messageBound(m, s.talk.imageBound)
		}
		if m.Seq == 0 {
			messages[i].Seq, messages[i].At = e.Seq, e.At
			c.seq, c.first, c.summary = e.Seq, b.FromSeq, b.Summary
			s.talk.note(messages[i])
		}
	}
	if b.Method == CompactClear {
		s.remark(e, fmt.Sprintf("To save room, the results of %d old calls are no longer shown to the model: %s.", len(b.Cleared), strings.Join(b.Cleared, ", ")))
	}
	s.talk.rewrite(messages, s.transcriptBound()+s.talk.stretched(fresh), b.After)
	s.forgetOverflow()
	return nil
}

// remark keeps a message that the model does not read, for people who read the
// transcript.
func (s *State) remark(e Event, text string) {
	m := guardMessage(text)
	m.Seq, m.Iteration, m.At = e.Seq, s.iterations, e.At
	s.talk.note(m)
}

// compacted is the transcript as the event leaves it; nil: as it is.
func (s *State) compacted(b Compacted) ([]Message, error) {
	old := s.talk.messages
	switch {
	case b.Failure != "":
		return nil, nil
	case b.Method == CompactClear:
		for _, id := range b.Cleared {
			if _, known := s.calls.byID[id]; !known {
				return nil, fmt.Errorf("clears the result of call %q, which is not in the journal: %w", id, ErrImpossible)
			}
		}
		return s.without(b.Cleared), nil
	case b.Method == CompactSummarize:
		from := slices.IndexFunc(old, func(m Message) bool { return s.firstSeq(m) == b.FromSeq })
		to := slices.IndexFunc(old, func(m Message) bool { return m.Seq == b.ToSeq }) + 1
		if from < 0 || to <= from {
			return nil, fmt.Errorf("sums up the messages of events %d to %d, which are not in the transcript: %w", b.FromSeq, b.ToSeq, ErrImpossible)
		}
		return s.summedUp(from, to, b.Summary), nil
	}
	return nil, fmt.Errorf("compaction method %q: %w", b.Method, ErrImpossible)
}

// firstSeq is the first event that the message stands for.
func (s *State) firstSeq(m Message) int64 {
	if m.Seq == s.compaction.seq {
		return s.compaction.first
	}
	return m.Seq
}

// changed reports whether a message's parts are not those that it had.
func changed(m, before Message) bool { return len(m.Parts) > 0 && &m.Parts[0] != &before.Parts[0] }

// forgetOverflow goes on after a request that was too large: the next one is shorter.
func (s *State) forgetOverflow() {
	if s.compaction.overflow == nil {
		return
	}
	s.compaction.overflow = nil
	if f := s.spend.failed; f != nil && f.Class == ErrorContext {
		s.spend.failed, s.spend.failures = nil, 0
	}
	if s.answer != nil && s.answer.finish == FinishContext {
		s.answer = nil
	}
}

// noteOverflow takes note of a request of the conversation that was too large.
func (s *State) noteOverflow(class ErrorClass, finish Finish, message string) {
	switch {
	case class == ErrorContext:
		s.compaction.overflow = &Tripped{Guard: "context", Reason: ContextWindow, Observed: string(class), Message: message}
	case finish == FinishContext:
		s.compaction.overflow = &Tripped{Guard: "context", Reason: ContextWindow, Message: "the answer was cut off because the context window is full"}
	case finish != "":
		s.compaction.overflow = nil
	}
}

// told is the failure in words.
func (f ModelFailed) told() string {
	return fmt.Sprintf("the model call failed (%s, status %d): %s", f.Class, f.Status, excerpt(f.Message, evidenceExcerpt))
}

// summarizer is the model that sums up.
func (s *State) summarizer() string { return cmp.Or(s.spec.Definition.Summarizer, s.chain.model()) }
