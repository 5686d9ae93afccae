package loop

import (
	"encoding/json"
	"fmt"
	"strings"
)

// nearWindow is how many iterations back the near-duplicate guard looks.
const nearWindow = 12

// guardNearDuplicate stops a run that tries one argument after the other and is
// told the same each time: a reworded search that stays empty. Arguments that look
// alike are no sign: a sweep over files has them too, but its results differ, and
// whatever is new anywhere begins the count anew. Changes that all answer "ok" are
// work.
func guardNearDuplicate(m moment) *Tripped {
	limit, from := m.spec.Limits.NearDuplicates, m.nearFrom()
	if limit == 0 || len(m.prints)-from < nudgeAt(limit) {
		return nil
	}
	n, most := m.nearest(from)
	if n < nudgeAt(limit) {
		return nil
	}
	return m.judge(Tripped{
		Guard: "near_duplicate", Reason: NearDuplicate, Limit: fmt.Sprint(limit),
		Observed: fmt.Sprintf("%d iterations with other arguments and the same result", n),
		Message:  fmt.Sprintf("%s brought the same result for %d different arguments, and nothing else was new", excerpt(most.tool, evidenceExcerpt), n),
		Say:      m.sayNear(most),
	}, n, limit, from, func() []Evidence { return m.proofOf(from, most.sameResult) })
}

// What a model is told that tries one argument after the other. An empty list is often
// taken for a mistake of one's own.
const (
	sayNearDuplicate = "You have tried this tool with many different arguments, and its result was the same each time. Other arguments will hardly help: do something else, or answer with what you have."
	sayNothingFound  = "You have tried this tool with many different arguments. It worked each time, and its result was truly empty: there is nothing to be found in this way. Do something else, or answer that there is nothing."
)

// sayNear tells the model what its attempts have in common.
func (m moment) sayNear(t trace) string {
	if t.ok && holdsNothing(m.calls.byID[t.id].Result) {
		return sayNothingFound
	}
	return sayNearDuplicate
}

// holdsNothing reports whether a result is no text at all, or JSON with nothing in it.
func holdsNothing(result string) bool {
	var v any
	if strings.TrimSpace(result) != "" && json.Unmarshal([]byte(result), &v) != nil {
		return false
	}
	return isNothing(v)
}

// isNothing reports whether a JSON value is empty, or has only members that are.
func isNothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, member := range v {
			if !isNothing(member) {
				return false
			}
		}
		return true
	}
	return false
}

// nearFrom is the footprint from which on arguments are compared.
func (m moment) nearFrom() int { return max(m.past.novel, len(m.prints)-nearWindow, 0) }

// nearest finds the newest call whose result came for most other arguments since
// footprint from.
func (m moment) nearest(from int) (n int, most trace) {
	if from >= len(m.prints) {
		return 0, most
	}
	for _, t := range m.newest().traces {
		if t.pollable || !t.failed && (!t.ok || !t.reads) {
			continue
		}
		if k := m.variations(from, t); k > n {
			n, most = k, t
		}
	}
	return n, most
}

func gaugeNearDuplicate(m moment) Gauge {
	n, _ := m.nearest(m.nearFrom())
	return gaugeStreak(n, m.spec.Limits.NearDuplicates, "iterations")
}

// sameResult reports whether another call of the same tool brings the same.
func (t trace) sameResult(other *trace) bool { return t.tool == other.tool && t.result == other.result }

// variations counts the footprints from i on in which the tool of t brought the
// result of t for arguments that it had not been given before.
func (s *State) variations(i int, t trace) int {
	n := 0
	seen := map[string]bool{}
	for ; i < len(s.prints); i++ {
		fresh := false
		for j := range s.prints[i].traces {
			if other := &s.prints[i].traces[j]; t.sameResult(other) && !seen[other.ask] {
				seen[other.ask], fresh = true, true
			}
		}
		if fresh {
			n++
		}
	}
	return n
}
