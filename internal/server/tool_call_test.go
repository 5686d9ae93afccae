package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// orderTool is an HTTP tool of the effect.
func orderTool(effect loopdv1.Effect) *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: "order", Effect: effect, MaxResultBytes: proto.Int32(512),
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "https://shop.example/orders"}},
	}
}

// calls are what left for tools since it was last asked.
func (w *world) calls() []sentCall {
	var calls []sentCall
	for {
		select {
		case c := <-w.sent:
			calls = append(calls, c)
		default:
			return calls
		}
	}
}

func TestCallTool(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("order", orderTool(loopdv1.Effect_EFFECT_READ_ONLY))
	w.rest(http.MethodPatch, "/v1/tools/order", `{"spec": {"name": "order_v2", "effect": "EFFECT_READ_ONLY", "http": {"method": "POST", "url": "https://shop.example/v2"}}}`)

	// The text of the arguments is sent as it is, the object with its members sorted.
	const exact = `{"order": 9007199254740993, "b": 1e2}`
	got, err := w.tools.CallTool(t.Context(), &loopdv1.CallToolRequest{
		Name: "tools/order", Input: &loopdv1.CallToolRequest_ArgumentsJson{ArgumentsJson: exact},
	})
	if err != nil {
		t.Fatal(err)
	}
	overREST := w.rest(http.MethodPost, "/v1/tools/order:call", `{"version": "1", "arguments": {"order": 7, "a": [1.5]}}`)
	sent := w.calls()

	want := []sentCall{
		{Run: loop.RunRef{Tenant: tenant, ID: sent[0].Run.ID}, Tool: "order_v2", Version: 2, Args: exact, Key: "loopd:" + sent[0].Run.ID + ":c1-1"},
		{Run: loop.RunRef{Tenant: tenant, ID: sent[1].Run.ID}, Tool: "order", Version: 1, Args: `{"a":[1.5],"order":7}`, Key: "loopd:" + sent[1].Run.ID + ":c1-1"},
	}
	if diff := cmp.Diff(want, sent); diff != "" || sent[0].Run.ID == sent[1].Run.ID || !strings.HasPrefix(sent[0].Run.ID, "tool-test-") {
		t.Errorf("sent %v (-want +got):\n%s", sent, diff)
	}
	answer := &loopdv1.CallToolResponse{
		Outcome: "ok", Content: exact, Status: 200, Bytes: int64(len(exact)), Latency: durationpb.New(5 * time.Millisecond), IdempotencyKey: sent[0].Key,
	}
	if diff := cmp.Diff(answer, got, protocmp.Transform()); diff != "" {
		t.Errorf("over gRPC (-want +got):\n%s", diff)
	}
	plain := map[string]any{
		"outcome": "ok", "content": sent[1].Args, "status": 200.0, "bytes": "21", "latency": "0.005s", "cut": false, "idempotencyKey": sent[1].Key,
	}
	if diff := cmp.Diff(plain, overREST); diff != "" {
		t.Errorf("over REST (-want +got):\n%s", diff)
	}
}

// TestACalledToolIsShownAsAModelSeesIt: what is too long for a model is cut.
func TestACalledToolIsShownAsAModelSeesIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("order", orderTool(loopdv1.Effect_EFFECT_IDEMPOTENT))
	args := `{"order": 1, "note": "` + strings.Repeat("x", 1000) + `"}`
	got, err := w.tools.CallTool(t.Context(), &loopdv1.CallToolRequest{
		Name: "tools/order", Input: &loopdv1.CallToolRequest_ArgumentsJson{ArgumentsJson: args},
	})
	if err != nil || !got.GetCut() || len(got.GetContent()) > 512 || got.GetBytes() != int64(len(args)) {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestCallsThatChangeSomething need a word, and one request id sends them once.
func TestCallsThatChangeSomething(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("order", orderTool(loopdv1.Effect_EFFECT_SIDE_EFFECT))
	const confirmed = `{"arguments": {"order": 7}, "confirmEffect": "EFFECT_SIDE_EFFECT", "requestId": "r1"}`
	first := w.rest(http.MethodPost, "/v1/tools/order:call", confirmed)

	resp, body := w.do(http.MethodPost, "/v1/tools/order:call", confirmed)
	p := decode(t, body)
	if resp.StatusCode != http.StatusConflict || p["reason"] != "CALL_NOT_REPEATABLE" || at(p, "metadata", "idempotency_key") != first["idempotencyKey"] {
		t.Errorf("the repeated request answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, "/v1/tools/order:call", strings.Replace(confirmed, "7", "8", 1))
	if p := decode(t, body); resp.StatusCode != http.StatusUnprocessableEntity || p["reason"] != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("another request with the id answered %d %s", resp.StatusCode, body)
	}
	if sent := w.calls(); len(sent) != 1 || sent[0].Args != `{"order":7}` {
		t.Errorf("sent %v, want one call", sent)
	}
	w.rest(http.MethodPost, "/v1/tools/order:call", strings.Replace(confirmed, "r1", "r2", 1))
	if sent := w.calls(); len(sent) != 1 || sent[0].Key == first["idempotencyKey"] {
		t.Errorf("a fresh id sent %v, want another call", sent)
	}
	if logs := w.logs.String(); !strings.Contains(logs, "a tool was called outside a run") || strings.Contains(logs, `"order":7`) {
		t.Errorf("the log has no line for the calls, or their arguments:\n%s", logs)
	}
}

// TestRepeatableCallsKeepTheirKey: the tool can tell that it is the same call.
func TestRepeatableCallsKeepTheirKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("order", orderTool(loopdv1.Effect_EFFECT_IDEMPOTENT))
	for _, id := range []string{"r1", "r1", "r2"} {
		w.rest(http.MethodPost, "/v1/tools/order:call", `{"arguments": {"order": 7}}`, "Idempotency-Key", id)
	}
	sent := w.calls()
	if len(sent) != 3 || sent[0].Key != sent[1].Key || sent[0].Key == sent[2].Key {
		t.Errorf("sent %v, want the first key twice, then another", sent)
	}
}

func TestCallToolRefusals(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("read", orderTool(loopdv1.Effect_EFFECT_READ_ONLY))
	w.tool("change", orderTool(loopdv1.Effect_EFFECT_SIDE_EFFECT))
	w.tool("pay", orderTool(loopdv1.Effect_EFFECT_IRREVERSIBLE))
	w.tool("undeclared", orderTool(loopdv1.Effect_EFFECT_UNSPECIFIED))
	asking := orderTool(loopdv1.Effect_EFFECT_READ_ONLY)
	asking.Approval = &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_WHEN, When: "args.order > 100"}
	w.tool("asking", asking)
	w.tool("pick", &loopdv1.Tool{Name: "pick", Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}})
	w.tool("wait", &loopdv1.Tool{Name: "wait", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_WAIT}})
	w.agent("helper", support())
	w.tool("helper", &loopdv1.Tool{Name: "helper", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/helper"}}})

	const good = `"arguments": {"order": 1}`
	for name, c := range map[string]struct {
		tool, body string
		status     int
		reason     string
		field      string
		says       string
	}{
		"no such tool":              {"none", good, 404, "TOOL_NOT_FOUND", "", "tools/none"},
		"no such version":           {"read", `"version": 2, ` + good, 404, "TOOL_VERSION_NOT_FOUND", "", "version 2"},
		"a client's":                {"pick", good, 409, "TOOL_NOT_CALLABLE", "", "caller of a run"},
		"loopd's own":               {"wait", good, 409, "TOOL_NOT_CALLABLE", "", "loopd's own"},
		"an agent":                  {"helper", good, 409, "TOOL_NOT_CALLABLE", "", "child runs"},
		"irreversible":              {"pay", `"confirmEffect": "EFFECT_IRREVERSIBLE", ` + good, 409, "TOOL_NOT_CALLABLE", "", "approval"},
		"undeclared":                {"undeclared", good, 409, "TOOL_NOT_CALLABLE", "", "EFFECT_IRREVERSIBLE"},
		"not confirmed":             {"change", good, 400, "FIELD_INVALID", "confirm_effect", "EFFECT_SIDE_EFFECT"},
		"another effect confirmed":  {"change", `"confirmEffect": "EFFECT_READ_ONLY", ` + good, 400, "FIELD_INVALID", "confirm_effect", "EFFECT_SIDE_EFFECT"},
		"a rule that is not minded": {"asking", good, 400, "FIELD_INVALID", "confirm_effect", "EFFECT_READ_ONLY"},
		"no arguments":              {"read", ``, 400, "FIELD_INVALID", "arguments", "arguments.order"},
		"bad arguments":             {"read", `"arguments": {}`, 400, "FIELD_INVALID", "arguments", "arguments.order"},
		"bad text of arguments":     {"read", `"argumentsJson": "[1"`, 400, "FIELD_INVALID", "arguments_json", "arguments.order"},
		"no text of arguments":      {"read", `"argumentsJson": ""`, 400, "FIELD_INVALID", "arguments_json", ""},
		"arguments in two forms":    {"read", `"argumentsJson": "{}", ` + good, 400, "BODY_INVALID", "", "oneof"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, body := w.do(http.MethodPost, "/v1/tools/"+c.tool+":call", "{"+strings.Trim(c.body, ", ")+"}")
			p := decode(t, body)
			field, _ := at(p, "errors", "0", "field").(string)
			if resp.StatusCode != c.status || p["reason"] != c.reason || field != c.field || !strings.Contains(string(body), c.says) {
				t.Errorf("answered %d %s", resp.StatusCode, body)
			}
		})
	}
	t.Cleanup(func() {
		if sent := w.calls(); len(sent) > 0 {
			t.Errorf("sent %v, want nothing", sent)
		}
	})
}
