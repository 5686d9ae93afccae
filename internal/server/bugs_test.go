package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/postgres"
)

// Case 21, supernovae-st/nika 1368, Vigil-SOC/vigil 964: "acme/large.1", a dot for a dash,
// is in no price list, costs nothing, and passes a cap of 0.02 USD for ever. Here neither
// the agent nor a run of one that lost its price is taken, and both say which row is
// missing. (The list of all such bugs: BUGS.md of internal/loop.)
func TestBug21UnpricedModelIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.store.CreateAgent(t.Context(), postgres.Agent{Tenant: tenant, ID: "old", Spec: []byte(`{"model": "acme/large.1"}`)}, postgres.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{
		"/v1/agents?agentId=new": `{"spec": {"model": "acme/large.1", "limits": {"maxCostUsd": "0.02"}}}`,
		"/v1/runs":               `{"agent": "agents/old", "input": "x", "limits": {"maxCostUsd": "0.02"}}`,
	} {
		resp, answer := w.do(http.MethodPost, path, body)
		p := decode(t, answer)
		if resp.StatusCode != http.StatusUnprocessableEntity || p["reason"] != "MODEL_UNPRICED" || at(p, "metadata", "model") != "acme/large.1" {
			t.Errorf("POST %s answered %d %s", path, resp.StatusCode, answer)
		}
		if says, _ := p["detail"].(string); !strings.Contains(says, `"acme/large.1" has no complete price`) || !strings.Contains(says, "the closest models are acme/large-1") {
			t.Errorf("POST %s says %q", path, says)
		}
	}
	if runs, _ := w.rest(http.MethodGet, "/v1/runs", "")["runs"].([]any); len(runs) > 0 {
		t.Errorf("there are runs: %v", runs)
	}
}
