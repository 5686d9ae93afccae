package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// A run's input says what its model will ask for, so that the model server needs no
// memory: "torture 17: read effect:slow+client | ..." is two iterations, the first of
// one call, the second of two. A child run is given a plan of its own.
const planPrefix = "torture "

// wish is one call that the model will ask for.
type wish struct{ tool, mode string }

// plan is what a run will do.
type plan struct {
	tag        string // names the run in ledgers; unique
	iterations [][]wish
}

// modes are what the tool server does with a call, most often the first.
var modes = [...]string{
	"ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "slow", "slow", "slow", "slow", "broken", "broken", "refused", "refused", "cut", "cut", "hang",
}

// twin is the mode of calls that are all asked for with the same arguments.
const twin = "twin"

// drawPlan makes a plan up.
func drawPlan(r *rand.Rand, tag string) plan {
	p := plan{tag: tag}
	kinds := []string{"read", "read", "keyed", "effect", "effect", "final", "client", "child"}
	for range 1 + r.IntN(4) {
		var calls []wish
		for range 1 + r.IntN(3) {
			calls = append(calls, wish{kinds[r.IntN(len(kinds))], modes[r.IntN(len(modes))]})
		}
		p.iterations = append(p.iterations, calls)
	}
	if r.IntN(4) == 0 { // the model forgets that it has done this
		p.iterations = append(p.iterations, []wish{{"effect", twin}}, []wish{{"effect", twin}})
	}
	return p
}

func (p plan) String() string {
	var iterations []string
	for _, calls := range p.iterations {
		var words []string
		for _, c := range calls {
			words = append(words, c.tool+":"+c.mode)
		}
		iterations = append(iterations, strings.Join(words, "+"))
	}
	return planPrefix + p.tag + ": " + strings.Join(iterations, " ")
}

// parsePlan reads what String wrote. False: it did not.
func parsePlan(input string) (plan, bool) {
	rest, ok := strings.CutPrefix(input, planPrefix)
	tag, text, found := strings.Cut(rest, ": ")
	if !ok || !found {
		return plan{}, false
	}
	p := plan{tag: tag}
	for iteration := range strings.FieldsSeq(text) {
		var calls []wish
		for word := range strings.SplitSeq(iteration, "+") {
			tool, mode, _ := strings.Cut(word, ":")
			calls = append(calls, wish{tool, mode})
		}
		p.iterations = append(p.iterations, calls)
	}
	return p, true
}

// args are a call's arguments: unique, so that no guard takes two calls for one, but
// for twins.
func (p plan) args(w wish, iteration, place int) string {
	tag := fmt.Sprintf("%s.%d.%d", p.tag, iteration, place)
	if w.tool == "child" {
		child := plan{tag: tag, iterations: [][]wish{{{"read", w.mode}}, {{"effect", "ok"}}}}
		return fmt.Sprintf(`{"input":%q}`, child)
	}
	if w.mode == twin {
		tag = p.tag + "." + twin
	}
	return fmt.Sprintf(`{"n":%q,"mode":%q}`, tag, w.mode)
}

// chance is a stable number below n for a text: whoever decides twice decides alike.
func chance(text string, n uint32) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return h.Sum32() % n
}
