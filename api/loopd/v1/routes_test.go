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
		{"GET", "/v1/" + run + "/messages", "RunService/ListMessages"},
		{"GET", "/v1/" + run + "/toolCalls", "RunService/ListToolCalls"},
		{"GET", "/v1/" + run + "/events?after_seq=7", "RunService/ListEvents"},
		{"GET", "/v1/" + run + "/events:stream", "RunService/StreamEvents"},
		{"POST", "/v1/" + call + ":approve", "RunService/ApproveToolCall"},
		{"POST", "/v1/" + call + ":deny", "RunService/DenyToolCall"},
		{"POST", "/v1/" + call + ":resolve", "RunService/ResolveToolCall"},
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
	if err := loopdv1.RegisterAgentServiceHandler(t.Context(), mux, conn); err != nil {
		t.Fatal(err)
	}
	if err := loopdv1.RegisterRunServiceHandler(t.Context(), mux, conn); err != nil {
		t.Fatal(err)
	}
	return mux
}
