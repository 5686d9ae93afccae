package loopdv1_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// TestEveryPathReachesItsMethod guards against two paths that look alike, such as
// a run's name and a run's name with a verb.
func TestEveryPathReachesItsMethod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ verb, path, method string }{
		{"POST", "/v1/agents?agent_id=a", "AgentService/CreateAgent"},
		{"GET", "/v1/agents", "AgentService/ListAgents"},
		{"GET", "/v1/agents/a?version=2", "AgentService/GetAgent"},
		{"PATCH", "/v1/agents/a?update_mask=spec,labels&allow_missing=true", "AgentService/UpdateAgent"},
		{"POST", "/v1/agents/a:archive", "AgentService/ArchiveAgent"},
		{"POST", "/v1/runs", "RunService/CreateRun"},
		{"GET", "/v1/runs?states=RUN_STATE_QUEUED&states=RUN_STATE_RUNNING", "RunService/ListRuns"},
		{"GET", "/v1/" + run, "RunService/GetRun"},
		{"GET", "/v1/" + run + ":wait?timeout=2.5s", "RunService/WaitRun"},
		{"POST", "/v1/" + run + ":cancel", "RunService/CancelRun"},
		{"POST", "/v1/" + run + ":pause", "RunService/PauseRun"},
		{"POST", "/v1/" + run + ":resume", "RunService/ResumeRun"},
		{"GET", "/v1/" + run + "/messages", "RunService/ListMessages"},
		{"GET", "/v1/" + run + "/toolCalls", "RunService/ListToolCalls"},
		{"GET", "/v1/" + run + "/events?after_seq=7", "RunService/ListEvents"},
		{"GET", "/v1/" + run + "/events:stream", "RunService/StreamEvents"},
		{"POST", "/v1/" + call + ":approve", "RunService/ApproveToolCall"},
		{"POST", "/v1/" + call + ":deny", "RunService/DenyToolCall"},
		{"POST", "/v1/" + call + ":resolve", "RunService/ResolveToolCall"},
		{"POST", "/v1/" + run + ":submitToolResults", "RunService/SubmitToolResults"},
		{"GET", "/v1/runs/-/toolCalls?states=TOOL_CALL_STATE_IN_DOUBT", "RunService/ListToolCalls"},
		{"GET", "/v1/runs?parent=" + run, "RunService/ListRuns"},
		{"POST", "/v1/tools?tool_id=a", "ToolService/CreateTool"},
		{"GET", "/v1/tools", "ToolService/ListTools"},
		{"GET", "/v1/tools/a?version=2", "ToolService/GetTool"},
		{"PATCH", "/v1/tools/a?update_mask=spec,labels&allow_missing=true", "ToolService/UpdateTool"},
		{"POST", "/v1/tools/a:archive", "ToolService/ArchiveTool"},
		{"POST", "/v1/tools/a:call", "ToolService/CallTool"},
		{"POST", "/v1/tools:importOpenApi", "ToolService/ImportOpenApi"},
		{"POST", "/v1/tools:listMcpTools", "ToolService/ListMcpTools"},
		{"GET", "/v1/approvals?state=APPROVAL_STATE_PENDING&tool=refund", "ApprovalService/ListApprovals"},
		{"GET", "/v1/" + approval, "ApprovalService/GetApproval"},
		{"POST", "/v1/" + approval + ":approve", "ApprovalService/Approve"},
		{"POST", "/v1/" + approval + ":deny", "ApprovalService/Deny"},
		{"POST", "/v1/" + approval + ":answer", "ApprovalService/Answer"},
		{"POST", "/v1/policies?policy_id=a", "PolicyService/CreatePolicy"},
		{"GET", "/v1/policies", "PolicyService/ListPolicies"},
		{"GET", "/v1/policies/a?version=2", "PolicyService/GetPolicy"},
		{"PATCH", "/v1/policies/a?update_mask=condition", "PolicyService/UpdatePolicy"},
		{"POST", "/v1/policies/a:archive", "PolicyService/ArchivePolicy"},
		{"GET", "/v1/usage:query?group_by=agent&group_by=label:team&labels[a.b/c]=d&states=RUN_STATE_FAILED", "UsageService/QueryUsage"},
		{"POST", "/v1/budgets?budget_id=a", "BudgetService/CreateBudget"},
		{"GET", "/v1/budgets", "BudgetService/ListBudgets"},
		{"GET", "/v1/budgets/a", "BudgetService/GetBudget"},
		{"PATCH", "/v1/budgets/a?update_mask=amount_usd&reason=x", "BudgetService/UpdateBudget"},
		{"POST", "/v1/budgets/a:raise", "BudgetService/RaiseBudget"},
		{"POST", "/v1/budgets/a:archive", "BudgetService/ArchiveBudget"},
		{"GET", "/v1/budgets/a/events", "BudgetService/ListBudgetEvents"},
		{"GET", "/v1/budgets/a/periods?page_size=7", "BudgetService/ListBudgetPeriods"},
		{"POST", "/v1/guards:testLimits", "GuardService/TestLimits"},
		{"GET", "/v1/agents/a:suggestLimits?tolerance=0.02&max_runs=50", "GuardService/SuggestLimits"},
		{"POST", "/v1/" + run + ":reportFalsePositive", "GuardService/ReportFalsePositive"},
	} {
		t.Run(c.method, func(t *testing.T) {
			t.Parallel()
			var called []string
			handler := gateway(t, func(method string) { called = append(called, method) })
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), c.verb, c.path, http.NoBody))
			if diff := cmp.Diff([]string{"/loopd.v1." + c.method}, called); diff != "" {
				t.Errorf("%s %s answered %d %s and called (-want +got):\n%s", c.verb, c.path, answer.Code, answer.Body, diff)
			}
		})
	}
}

// gateway is the REST gateway before a server that reports each method called and
// refuses it.
func gateway(t *testing.T, called func(method string)) http.Handler {
	t.Helper()
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		called(method)
		return status.Error(codes.FailedPrecondition, "this server only listens")
	}))
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///api", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	mux := runtime.NewServeMux()
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		loopdv1.RegisterAgentServiceHandler, loopdv1.RegisterRunServiceHandler, loopdv1.RegisterToolServiceHandler,
		loopdv1.RegisterApprovalServiceHandler, loopdv1.RegisterPolicyServiceHandler, loopdv1.RegisterBudgetServiceHandler,
		loopdv1.RegisterUsageServiceHandler, loopdv1.RegisterGuardServiceHandler,
	} {
		if err := register(t.Context(), mux, conn); err != nil {
			t.Fatal(err)
		}
	}
	return mux
}
