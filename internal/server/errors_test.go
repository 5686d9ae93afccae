package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

const noRun = "0190f5fe-7c00-7a00-8000-000000000000"

// TestRefusals sends what must be refused over REST, and checks status, reason,
// the fields named and words of the fix.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.claim().finish("Done.")
	w.agent("old", support())
	w.rest(http.MethodPost, "/v1/agents/old:archive", "")

	spec := func(s string) string { return `{"spec": ` + s + `}` }
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		reason             string
		field              string // of the first entry in errors
		says               string // part of the detail
	}{
		"no such path":       {"GET", "/v1/nothing", "", 404, "ROUTE_NOT_FOUND", "", "/openapi.json"},
		"no such page":       {"GET", "/nothing", "", 404, "ROUTE_NOT_FOUND", "", "/openapi.json"},
		"wrong method":       {"DELETE", "/v1/runs", "", 405, "ROUTE_NOT_FOUND", "", "not with this method"},
		"no JSON":            {"POST", "/v1/runs", `{"agent"`, 400, "BODY_INVALID", "", "JSON"},
		"two bodies":         {"POST", "/v1/runs", `{} {}`, 400, "BODY_INVALID", "", "JSON"},
		"a list":             {"POST", "/v1/runs", `[]`, 400, "BODY_INVALID", "", "["},
		"unknown member":     {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "limit": {}}`, 400, "BODY_INVALID", "", `"limit"`},
		"unknown parameter":  {"GET", "/v1/runs?page_sise=3", "", 400, "FIELD_INVALID", "", `"page_sise"`},
		"too large":          {"POST", "/v1/agents", `{"input": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "BODY_INVALID", "", "1048576"},
		"too large a run":    {"POST", "/v1/runs", `{"input": "` + strings.Repeat("x", 14<<20) + `"}`, 413, "BODY_INVALID", "", "14330536"},
		"input too long":     {"POST", "/v1/runs", `{"agent": "agents/support", "input": "` + strings.Repeat("x", 13<<20) + `"}`, 400, "FIELD_INVALID", "input", ""},
		"attachment of none": {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "attachments": [{"mediaType": "image/png"}]}`, 400, "FIELD_INVALID", "attachments[0].source", ""},
		"attachment by http": {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "attachments": [{"mediaType": "image/png", "uri": "http://a/b.png"}]}`, 400, "FIELD_INVALID", "attachments[0].uri", "http://a/b.png"},
		"attached movie":     {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "attachments": [{"mediaType": "video/mp4", "data": "AAAA"}]}`, 400, "FIELD_INVALID", "attachments[0].media_type", "image/png"},
		"attached no base64": {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "attachments": [{"mediaType": "image/png", "data": "%"}]}`, 400, "BODY_INVALID", "", ""},
		"empty run":          {"POST", "/v1/runs", `{}`, 400, "FIELD_INVALID", "agent", "agent"},
		"bad agent name":     {"POST", "/v1/runs", `{"agent": "Support", "input": "x"}`, 400, "FIELD_INVALID", "agent", `"Support"`},
		"bad label":          {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "labels": {"A": "b"}}`, 400, "FIELD_INVALID", `labels["A"]`, ""},
		"no such agent":      {"POST", "/v1/runs", `{"agent": "agents/nobody", "input": "x"}`, 404, "AGENT_NOT_FOUND", "", "agents/nobody"},
		"no such version":    {"POST", "/v1/runs", `{"agent": "agents/support", "agentVersion": 9, "input": "x"}`, 404, "AGENT_VERSION_NOT_FOUND", "", "version 9"},
		"archived agent":     {"POST", "/v1/runs", `{"agent": "agents/old", "input": "x"}`, 409, "AGENT_ARCHIVED", "", "agents/old"},
		"above the ceiling":  {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "limits": {"maxIterations": 21}}`, 400, "LIMIT_ABOVE_CEILING", "limits.max_iterations", "ceiling 20"},
		"too expensive":      {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "limits": {"maxCostUsd": "50.01"}}`, 400, "LIMIT_ABOVE_CEILING", "limits.max_cost_usd", "50 USD"},
		"no amount":          {"POST", "/v1/runs", `{"agent": "agents/support", "input": "x", "limits": {"maxCostUsd": "1,5"}}`, 400, "FIELD_INVALID", "limits.max_cost_usd", `"1,5"`},
		"agent's limit":      {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "limits": {"deadline": "90000s"}}`), 400, "LIMIT_ABOVE_CEILING", "agent.spec.limits.deadline", "24h"},
		"unknown provider":   {"POST", "/v1/agents?agentId=a", spec(`{"model": "acne/large-1"}`), 400, "MODEL_UNKNOWN", "agent.spec.model", "acme/large-1"},
		"unpriced model":     {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/larg-1"}`), 422, "MODEL_UNPRICED", "agent.spec.model", "closest models are acme/large-1, acme/small-1"},
		"unpriced fallback":  {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "fallbackModels": ["acme/backup-1", "acme/backup-2"]}`), 422, "MODEL_UNPRICED", "agent.spec.fallback_models[1]", "acme/backup-2"},
		"unknown fallback":   {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "fallbackModels": ["acne/backup-1"]}`), 400, "MODEL_UNKNOWN", "agent.spec.fallback_models[0]", "acne"},
		"fallback to itself": {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "fallbackModels": ["acme/large-1"]}`), 400, "FIELD_INVALID", "agent.spec.fallback_models[0]", "itself"},
		"bad effort":         {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "modelSettings": {"reasoning": {"effort": "extreme"}}}`), 400, "FIELD_INVALID", "agent.spec.model_settings.reasoning.effort", "extreme"},
		"bad tool":           {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "tools": [{"name": "u", "http": {"method": "GET", "url": "http://fine/"}}, {"name": "t", "http": {"method": "GET", "url": "http://forbidden/"}}]}`), 400, "FIELD_INVALID", "agent.spec.tools[1].http.url", "not allowed"},
		"tool without kind":  {"POST", "/v1/agents?agentId=a", spec(`{"model": "acme/large-1", "tools": [{"name": "t"}]}`), 400, "FIELD_INVALID", "agent.spec.tools[0].kind", ""},
		"id taken":           {"POST", "/v1/agents?agentId=support", spec(`{"model": "acme/large-1"}`), 409, "AGENT_EXISTS", "", "agents/support"},
		"bad mask":           {"PATCH", "/v1/agents/support?updateMask=version", spec(`{"model": "acme/large-1"}`), 400, "FIELD_INVALID", "update_mask", ""},
		"update nobody":      {"PATCH", "/v1/agents/nobody", spec(`{"model": "acme/large-1"}`), 404, "AGENT_NOT_FOUND", "", "agents/nobody"},
		"update archived":    {"PATCH", "/v1/agents/old", spec(`{"model": "acme/large-1"}`), 409, "AGENT_ARCHIVED", "", "agents/old"},
		"archive nobody":     {"POST", "/v1/agents/nobody:archive", "", 404, "AGENT_NOT_FOUND", "", "agents/nobody"},
		"no such run":        {"GET", "/v1/runs/" + noRun, "", 404, "RUN_NOT_FOUND", "", noRun},
		"not a run":          {"GET", "/v1/runs/1", "", 400, "FIELD_INVALID", "name", `"runs/1"`},
		"wait for nothing":   {"GET", "/v1/runs/" + noRun + ":wait", "", 404, "RUN_NOT_FOUND", "", noRun},
		"wait too long":      {"GET", "/v1/runs/" + noRun + ":wait?timeout=601s", "", 400, "FIELD_INVALID", "timeout", ""},
		"cancel nothing":     {"POST", "/v1/runs/" + noRun + ":cancel", "", 404, "RUN_NOT_FOUND", "", noRun},
		"cancel too late":    {"POST", "/v1/" + run.GetName() + ":cancel", "", 409, "RUN_FINISHED", "", "SUCCEEDED"},
		"pause nothing":      {"POST", "/v1/runs/" + noRun + ":pause", "", 404, "RUN_NOT_FOUND", "", noRun},
		"pause too late":     {"POST", "/v1/" + run.GetName() + ":pause", "", 409, "RUN_FINISHED", "", "ended as SUCCEEDED, COMPLETED"},
		"resume nothing":     {"POST", "/v1/runs/" + noRun + ":resume", "", 404, "RUN_NOT_FOUND", "", noRun},
		"resume too late":    {"POST", "/v1/" + run.GetName() + ":resume", "", 409, "RUN_FINISHED", "", "create another run"},
		"resume under none":  {"POST", "/v1/" + run.GetName() + ":resume", `{"limits": {"maxIterations": 0}}`, 400, "FIELD_INVALID", "limits.max_iterations", ""},
		"messages of none":   {"GET", "/v1/runs/" + noRun + "/messages", "", 404, "RUN_NOT_FOUND", "", noRun},
		"calls of none":      {"GET", "/v1/runs/" + noRun + "/toolCalls", "", 404, "RUN_NOT_FOUND", "", noRun},
		"events of none":     {"GET", "/v1/runs/" + noRun + "/events", "", 404, "RUN_NOT_FOUND", "", noRun},
		"no such call":       {"POST", "/v1/" + run.GetName() + "/toolCalls/c9-9:deny", "", 404, "TOOL_CALL_NOT_FOUND", "", "c9-9"},
		"call of no run":     {"POST", "/v1/runs/" + noRun + "/toolCalls/c1-1:deny", "", 404, "RUN_NOT_FOUND", "", noRun},
		"no hash":            {"POST", "/v1/" + run.GetName() + "/toolCalls/c1-1:approve", `{}`, 400, "FIELD_INVALID", "arguments_sha256", ""},
		"result of nothing":  {"POST", "/v1/" + run.GetName() + "/toolCalls/c1-1:resolve", `{"resolution": "RESOLUTION_RETRY", "result": "x"}`, 400, "FIELD_INVALID", "", "result is only for"},
		"made-up page token": {"GET", "/v1/runs?page_token=AAAAAAAAAAAAAAAA", "", 400, "PAGE_TOKEN_INVALID", "page_token", "next_page_token"},
		"token of another":   {"GET", "/v1/agents?page_token=" + w.tokenOfRuns(), "", 400, "PAGE_TOKEN_INVALID", "page_token", "next_page_token"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := w.do(c.method, c.path, c.body)
			p := decode(t, body)
			if resp.StatusCode != c.status || p["status"] != float64(c.status) || p["reason"] != c.reason || p["type"] != "/problems/"+c.reason {
				t.Errorf("answered %d %s\nwant %d %s", resp.StatusCode, body, c.status, c.reason)
			}
			if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %q", got)
			}
			if c.field != "" && at(p, "errors", "0", "field") != c.field {
				t.Errorf("the first field is %v, want %s: %s", at(p, "errors", "0", "field"), c.field, body)
			}
			if detail, _ := p["detail"].(string); !strings.Contains(detail, c.says) || detail == "" {
				t.Errorf("the detail %q does not say %q", detail, c.says)
			}
			if id := resp.Header.Get("X-Request-Id"); id == "" || p["request_id"] != id {
				t.Errorf("request id %v in the body, %q in the header", p["request_id"], id)
			}
		})
	}
}

// tokenOfRuns is a page token of another list.
func (w *world) tokenOfRuns() string {
	w.t.Helper()
	w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`)
	token, _ := w.rest(http.MethodGet, "/v1/runs?page_size=1", "")["nextPageToken"].(string)
	if token == "" {
		w.t.Fatal("there is no second page of runs")
	}
	return token
}

// TestGRPCErrorsCarryReasonFieldsAndRequestID: what REST shows comes from the status.
func TestGRPCErrorsCarryReasonFieldsAndRequestID(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())
	_, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{
		Agent: agent, Input: "x", Limits: &loopdv1.Limits{MaxToolCalls: proto.Int32(501), MaxReasks: proto.Int32(6)},
	})
	st := status.Convert(err)
	if st.Code() != codes.InvalidArgument {
		t.Fatalf("got %v", err)
	}
	var fields []string
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			want := map[string]string{"field": "limits.max_tool_calls", "ceiling": "500"}
			if diff := cmp.Diff(want, d.GetMetadata()); diff != "" || d.GetReason() != "LIMIT_ABOVE_CEILING" || d.GetDomain() != "loopd.dev" {
				t.Errorf("error info %v, metadata (-want +got):\n%s", d, diff)
			}
		case *errdetails.BadRequest:
			for _, f := range d.GetFieldViolations() {
				fields = append(fields, f.GetField())
			}
		case *errdetails.RequestInfo:
			if d.GetRequestId() == "" || !strings.Contains(w.logs.String(), d.GetRequestId()) {
				t.Errorf("the log does not have request %q", d.GetRequestId())
			}
		}
	}
	if diff := cmp.Diff([]string{"limits.max_tool_calls", "limits.max_reasks"}, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// TestTheDatabaseGone: what may be repeated says so, and the detail stays in the log.
func TestTheDatabaseGone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.store.Close()
	resp, body := w.do(http.MethodGet, "/v1/runs/"+noRun, "")
	p := decode(t, body)
	if resp.StatusCode != http.StatusServiceUnavailable || p["reason"] != "STORE_UNAVAILABLE" || p["retryable"] != true ||
		resp.Header.Get("Retry-After") == "" || strings.Contains(string(body), "pool") {
		t.Errorf("answered %d %v %s", resp.StatusCode, resp.Header, body)
	}
	if id, _ := p["request_id"].(string); !strings.Contains(w.logs.String(), id) || !strings.Contains(w.logs.String(), "closed pool") {
		t.Errorf("the log has not the detail of %v: %s", id, w.logs)
	}
}

// TestPointersLeadIntoTheBody: agents are sent without the request around them.
func TestPointersLeadIntoTheBody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for body, c := range map[string]struct{ path, want string }{
		`{"spec": {"model": "acne/x"}}`:                                    {"/v1/agents?agent_id=a", "/spec/model"},
		`{"agent": "agents/a", "input": "x", "limits": {"maxReasks": -1}}`: {"/v1/runs", "/limits/maxReasks"},
	} {
		_, answer := w.do(http.MethodPost, c.path, body)
		if got := at(decode(t, answer), "errors", "0", "pointer"); got != c.want {
			t.Errorf("%s: pointer %v, want %s: %s", body, got, c.want, answer)
		}
	}
}

func TestProblemPages(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, number := range loopdv1.ErrorReason_value {
		if number == 0 {
			continue
		}
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		resp, body := w.do(http.MethodGet, "/problems/"+reason, "")
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), reason) {
			t.Errorf("the page of %s is %d %s", reason, resp.StatusCode, body)
		}
	}
	if resp, _ := w.do(http.MethodGet, "/problems/NONSENSE", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the page of no reason is %d", resp.StatusCode)
	}
}

// TestAForeignPageMayNotCall: browsers send what a visited page tells them.
func TestAForeignPageMayNotCall(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	resp, body := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`,
		"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain")
	if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "evil.example") {
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
	if runs, err := w.store.CountRuns(t.Context()); err != nil || runs[loop.StateQueued] != 0 {
		t.Errorf("runs are %v, %v", runs, err)
	}
}
