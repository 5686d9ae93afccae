package loop_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// totals are what a whole scenario came to: what reached the world, and what it cost.
// Two words of a script's first line are for them:
//
//	totals    they are written at the end
//	probes=N  whatever the core is asked, it is asked N times more
type totals struct {
	on       bool
	probes   int
	requests int            // to models
	tools    map[string]int // sends, by tool; looks of a wait and of a verification too
	most     loop.USD       // spent and held, at its highest
}

// asks takes a word of the first line, if it is for the totals.
func (s *script) asks(name, value string) bool {
	switch name {
	case "totals":
		s.totals.on = true
	case "probes":
		s.totals.probes = int(s.number(value))
	default:
		return false
	}
	return true
}

// sent counts one send.
func (t *totals) sent(send loop.Send) {
	if t.tools == nil {
		t.tools = map[string]int{}
	}
	t.tools[send.Spec.Name]++
}

// note counts requests, and looks at the money after each event.
func (t *totals) note(b loop.Body, h loop.Head) {
	if _, ok := b.(loop.ModelStarted); ok {
		t.requests++
	}
	t.most = max(t.most, h.Cost.Total()+h.Held)
}

// sum writes the totals of the scenario that has ended.
func (s *script) sum() {
	h := s.state.Head()
	tools := make([]string, 0, len(s.totals.tools))
	for _, name := range slices.Sorted(maps.Keys(s.totals.tools)) {
		tools = append(tools, fmt.Sprintf("%s:%d", name, s.totals.tools[name]))
	}
	effects := make([]string, 0, len(h.SideEffects))
	for _, e := range h.SideEffects {
		effects = append(effects, fmt.Sprintf("%s:%s:%s", e.CallID, e.Tool, e.State))
	}
	s.printf("total state=%s reason=%s requests=%d sent=%s effects=%s", h.State, h.Stop.Reason, s.totals.requests, listed(tools), listed(effects))
	s.printf("  tokens=%d/%d cost=%s never_above=%s of %s trips=%d",
		h.Usage.Input(), h.Usage.AllOutput(), h.Cost.Total(), s.totals.most, s.spec.Limits.Cost, len(s.state.Trips()))
}

func listed(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, ",")
}

// probe asks the core again and again, as whoever only wants to know does. The answer
// must stay the same.
func (s *script) probe(action loop.Action) {
	s.t.Helper()
	for range s.totals.probes {
		if again := s.state.Next(s.now); !same(action, again) {
			s.t.Fatalf("asked again the core wants something else:\n%s", diff(action, again))
		}
	}
}

// reload throws the state away and folds what a store gives back.
func (s *script) reload() {
	s.t.Helper()
	events := make([]loop.Event, 0, len(s.journal))
	for _, e := range s.journal {
		kind, text, err := loop.EncodeBody(e.Body)
		if err != nil {
			s.t.Fatalf("encode event %d: %v", e.Seq, err)
		}
		if e.Body, err = loop.DecodeBody(kind, text); err != nil {
			s.t.Fatalf("decode event %d: %v", e.Seq, err)
		}
		events = append(events, e)
	}
	state, err := loop.Fold(theRun, events)
	if err != nil {
		s.t.Fatalf("fold: %v", err)
	}
	if d := cmp.Diff(s.state.Head(), state.Head()); d != "" {
		s.t.Fatalf("the head differs after a reload (-before +after):\n%s", d)
	}
	s.state, s.journal = state, events
}
