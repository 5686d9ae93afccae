package main

import (
	"errors"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRegisters shows what histories of a register can have happened, and which not.
func TestRegisters(t *testing.T) {
	t.Parallel()
	lost, no := status.Error(codes.Unavailable, "gone"), status.Error(codes.FailedPrecondition, "too late")
	type write struct {
		value      string
		err        error
		concurrent bool // with the one before
	}
	for name, c := range map[string]struct {
		writes []write
		holds  string
		ok     bool
	}{
		"written":                         {[]write{{value: "a"}}, "a", true},
		"said again":                      {[]write{{value: "a"}, {value: "a"}}, "a", true},
		"lost, then said again":           {[]write{{err: lost}, {value: "a"}}, "a", true},
		"lost, and it happened":           {[]write{{value: "a", err: lost}}, "a", true},
		"lost, and it did not happen":     {[]write{{value: "a", err: lost}}, "", true},
		"the loser is refused":            {[]write{{value: "a"}, {value: "b", err: no, concurrent: true}}, "a", true},
		"lost, and came first":            {[]write{{value: "a", err: lost}, {value: "b", err: no}}, "a", true},
		"acknowledged and not there":      {[]write{{value: "a"}}, "", false},
		"two winners":                     {[]write{{value: "a"}, {value: "b", concurrent: true}}, "a", false},
		"the loser counts":                {[]write{{value: "a"}, {value: "b", err: no}}, "b", false},
		"lost, and the other won, but no": {[]write{{value: "a", err: lost}, {value: "b"}}, "a", false},
		"nobody wrote it":                 {[]write{{value: "a", err: no}}, "a", false},
	} {
		r := registers{history: map[string][]porcupine.Operation{}}
		began := time.Now()
		for _, w := range c.writes {
			if !w.concurrent {
				began = time.Now()
			}
			r.wrote("x", w.value, began, w.err)
		}
		r.holds("x", c.holds)
		if violations := r.judge(); (len(violations) == 0) != c.ok {
			t.Errorf("%s: %q", name, violations)
		}
	}
	r := registers{history: map[string][]porcupine.Operation{}}
	for range 1000 { // clients insist, and are many in an outage
		r.wrote("x", "", time.Now(), lost)
	}
	r.holds("x", "")
	if violations := r.judge(); len(violations) > 0 {
		t.Errorf("insisting for long: %.200q", violations)
	}
	if hear(errors.New("no status")) != unknown {
		t.Error("an error that is no answer counts as one")
	}
}
