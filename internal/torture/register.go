package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Two things are written once, by whoever comes first, and then stand for all: which
// run a key has, and what was decided about a call. Clients write them through any
// replica, often without hearing what came of it. Whether all that they did hear fits
// into one order of events is a question for porcupine.

// heard is what came of a request, as far as its client knows.
type heard int

const (
	accepted heard = iota
	refused        // whatever the reason, it changed nothing
	unknown        // it may take effect at any time, or never
)

func hear(err error) heard {
	switch {
	case err == nil:
		return accepted
	case unclear(err):
		return unknown
	}
	return refused
}

// access is one request to a register, or what Postgres says of it in the end.
type access struct {
	read  bool
	value string // "": of a read, that nothing was written; of a write, that nobody knows what
	heard heard  // of a write
}

// anything is the state of a register after a write that nobody heard of.
const anything = "?"

// once is a register that is written once. A state is what it holds.
func once() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			now, in := state.(string), input.(access) //nolint:errcheck // nothing else is put in
			written := in.value
			if written == "" {
				written = anything
			}
			switch {
			case !in.read && in.heard == refused:
				return true, now
			case in.read && in.value == "":
				return now == "", now
			case in.read && now == "": // nobody wrote it
				return false, now
			case !in.read && in.heard == unknown && now != "": // it came too late
				return true, now
			case now == "" || now == anything:
				return true, written
			}
			return now == written || written == anything, now
		},
	}
}

// registers is the history of all of them, by name.
type registers struct {
	mu      sync.Mutex
	history map[string][]porcupine.Operation
}

// wrote notes a write that began at some time and has come back now.
func (r *registers) wrote(name, value string, began time.Time, err error) {
	back := time.Now().UnixNano()
	if hear(err) == unknown {
		back = math.MaxInt64
	}
	r.note(name, access{value: value, heard: hear(err)}, began.UnixNano(), back)
}

// holds notes what a register holds in the end.
func (r *registers) holds(name, value string) {
	now := time.Now().UnixNano()
	r.note(name, access{read: true, value: value}, now, now)
}

func (r *registers) note(name string, a access, from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.heard == unknown && slices.ContainsFunc(r.history[name], func(o porcupine.Operation) bool { return o.Input == a }) {
		return // the first that nobody heard of may happen whenever this one may
	}
	r.history[name] = append(r.history[name], porcupine.Operation{Input: a, Call: from, Return: to})
}

// names are those of all registers that somebody tried to write.
func (r *registers) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.history))
}

// judge returns the registers whose history cannot have happened.
func (r *registers) judge() []string {
	var violations []string
	for _, name := range r.names() {
		if verdict := porcupine.CheckOperationsTimeout(once(), r.history[name], 10*time.Second); verdict != porcupine.Ok {
			violations = append(violations, fmt.Sprintf("P2 no order explains what clients heard of one %s (%s): %v", name, verdict, r.history[name]))
		}
	}
	return violations
}

// judgeRegisters compares what clients heard with what Postgres holds.
func (w *world) judgeRegisters(ctx context.Context) ([]string, error) {
	held := map[string]string{}
	rows, err := w.db.Query(ctx, `SELECT 'run of ' || (input #>> '{}'), 'runs/' || run_id FROM runs WHERE depth = 0
		UNION ALL SELECT 'decision on runs/' || run_id || '/toolCalls/' || call_id, CASE WHEN verdict_approved THEN 'approved' ELSE 'denied' END
		FROM tool_calls WHERE verdict_approved IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("read the registers: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, fmt.Errorf("read the registers: %w", err)
		}
		held[name] = value
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the registers: %w", err)
	}
	for _, name := range w.client.registers.names() {
		w.client.registers.holds(name, held[name])
	}
	return w.client.registers.judge(), nil
}
