package tool

import (
	"encoding/json"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// Every built-in has a name, words for the model and a schema that compiles and
// says yes and no.
func TestBuiltins(t *testing.T) {
	t.Parallel()
	r := New(Config{})
	for name, tc := range map[loop.Builtin]struct{ good, bad string }{
		loop.BuiltinWait:         {`{"tool":"status","arguments":{"id":1},"every_seconds":60}`, `{"seconds":0}`},
		loop.BuiltinAskHuman:     {`{"question":"Which?","choices":["a","b"]}`, `{"question":""}`},
		loop.BuiltinFinish:       {`{"answer":"done"}`, `{}`},
		loop.BuiltinMemoryGet:    {`{"key":"k"}`, `{"key":""}`},
		loop.BuiltinMemoryPut:    {`{"key":"k","text":""}`, `{"key":"k"}`},
		loop.BuiltinMemorySearch: {`{"query":"red"}`, `{"q":"red"}`},
		loop.BuiltinReadResult:   {`{"call":"c3-1","offset":4000,"find":"x"}`, `{"offset":1}`},
	} {
		spec, err := Builtin(name, nil)
		if err != nil || spec.Name == "" || spec.Description == "" || spec.Effect == "" || spec.Builtin != name {
			t.Errorf("%s: %+v, %v", name, spec, err)
		}
		if problem := r.Problem(spec, tc.good); problem != "" {
			t.Errorf("%s refuses %s: %s", name, tc.good, problem)
		}
		if r.Problem(spec, tc.bad) == "" {
			t.Errorf("%s takes %s", name, tc.bad)
		}
	}
	if spec, err := Builtin(loop.BuiltinFinish, json.RawMessage(`{"type":"object","required":["total"]}`)); err != nil || r.Problem(spec, `{}`) == "" {
		t.Errorf("finish does not have the output schema: %v", err)
	}
	if _, err := Builtin("nosuch", nil); err == nil {
		t.Error("there is a built-in called nosuch")
	}
}
