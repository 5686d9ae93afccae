package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestGuardFieldsExist: what the table of guards calls a limit is a field of Limits,
// so that whoever is told to raise it can.
func TestGuardFieldsExist(t *testing.T) {
	t.Parallel()
	fields := (&loopdv1.Limits{}).ProtoReflect().Descriptor().Fields()
	for _, g := range loop.Guards() {
		for _, field := range g.Fields {
			if fields.ByName(protoreflect.Name(field)) == nil {
				t.Errorf("guard %s names the limit %q, which Limits does not have", g.Name, field)
			}
		}
	}
}

// TestGuardVerdicts: what an agent says of its guards reaches the worker, and what
// no guard may do is refused with its place in the request.
func TestGuardVerdicts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.GuardVerdicts = map[string]loopdv1.GuardVerdict{
		"cost": loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE, "novelty": loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE,
		"errors": loopdv1.GuardVerdict_GUARD_VERDICT_STOP, "cycle": loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP,
	}
	spec.Tools[0].MaxCallsPerRun = new(int32(3))
	agent := w.agent("careful", spec)
	run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "`+agent+`", "input": "x"}`)
	pinned, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run["name"].(string), "runs/")})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]loop.Verdict{
		"cost": loop.VerdictPause, "novelty": loop.VerdictNudge, "errors": loop.VerdictStop, "cycle": loop.VerdictFinalTurn,
	}
	if d := cmp.Diff(want, pinned.Definition.Acts); d != "" {
		t.Errorf("the worker gets (-want +got):\n%s", d)
	}
	if tool, _ := pinned.Definition.Tool(spec.GetTools()[0].GetName()); tool.MaxCalls != 3 {
		t.Errorf("the worker gets a cap of %d calls", tool.MaxCalls)
	}
	if shown := at(w.rest(http.MethodGet, "/v1/"+agent, ""), "spec", "guardVerdicts", "cost"); shown != "GUARD_VERDICT_PAUSE" {
		t.Errorf("the agent shows %v", shown)
	}

	for name, c := range map[string]struct{ verdicts, field, says string }{
		"a budget observed":  {`{"cost": "GUARD_VERDICT_NUDGE"}`, `agent.spec.guard_verdicts["cost"]`, "use GUARD_VERDICT_WRAP_UP, GUARD_VERDICT_PAUSE or GUARD_VERDICT_STOP"},
		"no such guard":      {`{"novelti": "GUARD_VERDICT_STOP"}`, `agent.spec.guard_verdicts["novelti"]`, "the closest: novelty"},
		"no verdict":         {`{"repeat": "GUARD_VERDICT_UNSPECIFIED"}`, `agent.spec.guard_verdicts["repeat"]`, "cannot be GUARD_VERDICT_UNSPECIFIED"},
		"age cannot pause":   {`{"wall_time": "GUARD_VERDICT_PAUSE"}`, `agent.spec.guard_verdicts["wall_time"]`, "use GUARD_VERDICT_STOP"},
		"said by the budget": {`{"account": "GUARD_VERDICT_STOP"}`, `agent.spec.guard_verdicts["account"]`, "leave it out"},
	} {
		answer, body := w.do(http.MethodPost, "/v1/agents?agentId=bad", `{"spec": {"model": "`+model+`", "guardVerdicts": `+c.verdicts+`}}`)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), strings.ReplaceAll(c.field, `"`, `\"`)) || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %d %s", name, answer.StatusCode, body)
		}
	}
}
