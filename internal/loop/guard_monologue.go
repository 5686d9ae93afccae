package loop

import (
	"fmt"
	"slices"
	"strings"
)

// guardMonologue stops a model that repeats its own words: answers that are sent
// back and come again, and a text that goes round within one answer. Words beside
// calls are no monologue as long as they get somewhere.
func guardMonologue(m moment) *Tripped {
	limit := m.spec.Limits.Monologue
	if limit == 0 {
		return nil
	}
	if t := m.chant(); t != nil {
		return t
	}
	n, from := m.talk.echoes()
	if n < nudgeAt(limit) {
		return nil
	}
	return m.speech(n, limit, from, Tripped{
		Observed: fmt.Sprintf("%d answers in the same words", n), Limit: fmt.Sprint(limit),
		Message: "the model gave the same answer again and again, although it was sent back",
		Say:     "You have given this answer before, and it was not accepted. Do not give it again: change what was wrong, or use your tools.",
	})
}

// speech makes the verdict on n answers in a row, the first of them of an iteration.
func (m moment) speech(n, limit, from int, t Tripped) *Tripped {
	t.Guard, t.Reason = "monologue", Monologue
	switch {
	case n >= limit:
		t.Verdict = m.noProgress()
	case m.nudged(t.Guard, from):
		return nil
	default:
		t.Verdict = VerdictNudge
	}
	t.Evidence = m.words(from)
	return &t
}

func gaugeMonologue(m moment) Gauge {
	n, _ := m.talk.echoes()
	return gaugeStreak(n, m.spec.Limits.Monologue, "answers")
}

// maxChants is how many answers in a row may chant; the first is told so.
const maxChants = 2

// chant judges answers that go round within themselves.
func (m moment) chant() *Tripped {
	n, from := m.talk.chants()
	if n == 0 {
		return nil
	}
	return m.speech(n, maxChants, from, Tripped{
		Observed: fmt.Sprintf("%d answers that repeat the same words to their end", n), Limit: fmt.Sprint(maxChants),
		Message: "the model repeated the same words within its answer until the end",
		Say:     "Your last answer repeated the same words over and over. Say things once, and go on.",
	})
}

// words are the ends of the answers since an iteration, for evidence.
func (m moment) words(since int) []Evidence {
	var ev []Evidence
	for _, said := range m.talk.messages {
		if said.Role != RoleAssistant || said.Iteration < since {
			continue
		}
		text := said.Text()
		ev = append(ev, Evidence{
			Iteration: said.Iteration, Note: strings.ToValidUTF8(text[max(0, len(text)-evidenceExcerpt):], ""),
			ResultHash: digest("answer", inOneLine(text))[:hashExcerpt],
		})
	}
	return ev
}

// inOneLine is a text without what does not change what it says: case and space.
func inOneLine(text string) string { return strings.ToLower(strings.Join(strings.Fields(text), " ")) }

// echoes counts the newest answers that say the same without a call, each of them
// followed by a word of a guard: the model was told to go on and did not. It also
// tells the iteration of the first.
func (t *transcript) echoes() (n, from int) {
	text, messages := "", t.everything()
	for i := len(messages) - 1; i > 0; i-- {
		for i > 0 && messages[i].Source == SourceGuard {
			i--
		}
		answer := &messages[i]
		told := i+1 < len(messages) && messages[i+1].Source == SourceGuard
		if !told || answer.Role != RoleAssistant || len(answer.Calls()) > 0 {
			break
		}
		said := inOneLine(answer.Text())
		if n > 0 && said != text {
			break
		}
		text, from = said, answer.Iteration
		n++
	}
	return n, from
}

// chants counts the newest answers in a row that chant, and tells the iteration
// of the first.
func (t *transcript) chants() (n, from int) {
	for _, message := range slices.Backward(t.everything()) {
		if message.Source == SourceUser {
			break
		}
		if message.Role != RoleAssistant {
			continue
		}
		if !chants(message.Text()) || n == maxChants {
			break
		}
		n++
		from = message.Iteration
	}
	return n, from
}
