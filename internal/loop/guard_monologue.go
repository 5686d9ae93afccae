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
	t := &Tripped{
		Guard: "monologue", Reason: Monologue, Observed: fmt.Sprintf("%d answers in the same words", n), Limit: fmt.Sprint(limit),
		Message: "the model gave the same answer again and again, although it was sent back", Evidence: m.words(),
	}
	switch {
	case n >= limit:
		t.Verdict = m.noProgress()
		return t
	case !m.nudged(t.Guard, from):
		t.Verdict = VerdictNudge
		t.Say = "You have given this answer before, and it was not accepted. Do not give it again: change what was wrong, or use your tools."
		return t
	}
	return nil
}

// maxChants is how many answers in a row may chant; the first is told so.
const maxChants = 2

// chant judges answers that go round within themselves.
func (m moment) chant() *Tripped {
	n, from := m.talk.chants()
	if n == 0 {
		return nil
	}
	t := &Tripped{
		Guard: "monologue", Reason: Monologue, Observed: fmt.Sprintf("%d answers that repeat the same words to their end", n), Limit: fmt.Sprint(maxChants),
		Message: "the model repeated the same words within its answer until the end", Evidence: m.words(),
	}
	switch {
	case n >= maxChants:
		t.Verdict = m.noProgress()
		return t
	case !m.nudged(t.Guard, from):
		t.Verdict = VerdictNudge
		t.Say = "Your last answer repeated the same words over and over. Say things once, and go on."
		return t
	}
	return nil
}

// words are the newest answer's end, for evidence.
func (m moment) words() []Evidence {
	text := m.talk.lastAssistantText()
	return []Evidence{{Iteration: m.iterations, Note: strings.ToValidUTF8(text[max(0, len(text)-evidenceExcerpt):], "")}}
}

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
		said := strings.ToLower(strings.Join(strings.Fields(answer.Text()), " "))
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

// What makes a text a chant, after the loop detection of Gemini CLI: its last 50
// bytes stand there 10 times, at most 250 bytes apart in the mean.
const (
	chantWindow = 50
	chantTimes  = 10
	chantTail   = chantTimes * 250
)

// chants reports whether a text repeats the same words until its end. Code, tables
// and lists are left out: they look alike line for line and are none.
func chants(text string) bool { return goesRound(text) && goesRound(prose(text)) }

func goesRound(text string) bool {
	if len(text) < chantTimes*chantWindow/2 {
		return false
	}
	tail := text[max(0, len(text)-chantTail):]
	return overlapping(tail, tail[max(0, len(tail)-chantWindow):]) >= chantTimes
}

// overlapping counts where part stands in text; the places may overlap.
func overlapping(text, part string) int {
	n := 0
	for {
		i := strings.Index(text, part)
		if i < 0 {
			return n
		}
		n++
		text = text[i+1:]
	}
}

// prose is a text without its code blocks and the lines of its lists and tables.
func prose(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			code = !code
		case code || trimmed == "" || strings.ContainsRune("-*+|#>0123456789", rune(trimmed[0])) || strings.HasPrefix(line, "    "):
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}
