package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// admin asks the operators' port.
func (w *world) admin(path string) *httptest.ResponseRecorder {
	w.t.Helper()
	answer := httptest.NewRecorder()
	w.server.AdminHandler(w.registry).ServeHTTP(answer, httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, http.NoBody))
	return answer
}

// metric reads one sample as operators see it; -1 if there is none.
func (w *world) metric(series string) float64 {
	w.t.Helper()
	for line := range strings.Lines(w.admin("/metrics").Body.String()) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				w.t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

func TestRunsAreCountedByAgentAndDoor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())
	w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`)
	for range 2 {
		if _, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/invented", "input": "x"}`)
	for series, want := range map[string]float64{
		`loopd_runs_started_total{agent="support",source="rest"}`: 1,
		`loopd_runs_started_total{agent="support",source="grpc"}`: 2,
	} {
		if got := w.metric(series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if metrics := w.admin("/metrics").Body.String(); strings.Contains(metrics, "invented") {
		t.Errorf("an agent that does not exist has a series:\n%s", metrics)
	}
}

func TestMetricNames(t *testing.T) {
	t.Parallel()
	w := setup(t)
	problems, err := promlint.New(strings.NewReader(w.admin("/metrics").Body.String())).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("the metrics' names: %v, %v", problems, err)
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	w := setup(t)
	health := grpc_health_v1.NewHealthClient(w.conn)
	for _, path := range []string{"/healthz", "/readyz", "/debug/pprof/cmdline"} {
		if answer := w.admin(path); answer.Code != http.StatusOK {
			t.Errorf("%s answered %d %s", path, answer.Code, answer.Body)
		}
	}
	if got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", got, err)
	}

	w.server.Drain()
	if answer := w.admin("/readyz"); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "draining") {
		t.Errorf("/readyz while draining answered %d %s", answer.Code, answer.Body)
	}
	if answer := w.admin("/healthz"); answer.Code != http.StatusOK {
		t.Errorf("/healthz while draining answered %d", answer.Code)
	}
	if got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while draining is %v, %v", got, err)
	}
	w.agent("still", support()) // calls are served to the end
}

func TestNotReadyWithoutDatabase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.store.Close()
	if answer := w.admin("/readyz"); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "not ready") {
		t.Errorf("/readyz answered %d %s", answer.Code, answer.Body)
	}
}

func TestOpenAPIAndReflection(t *testing.T) {
	t.Parallel()
	w := setup(t)
	resp, body := w.do(http.MethodGet, "/openapi.json", "")
	var doc struct{ OpenAPI string }
	if err := json.Unmarshal(body, &doc); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("/openapi.json answered %d, version %q, %v", resp.StatusCode, doc.OpenAPI, err)
	}
	stream, err := reflectionpb.NewServerReflectionClient(w.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || !strings.Contains(answer.String(), "loopd.v1.RunService") {
		t.Errorf("reflection answered %v, %v", answer, err)
	}
}

// TestTraceContextReachesTheRun: the worker goes on with the caller's trace,
// through either door.
func TestTraceContextReachesTheRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	overREST := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`, "traceparent", parent)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent)
	overGRPC, err := w.runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: agent, Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{overREST["name"].(string), overGRPC.GetName()} {
		spec, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(name, "runs/")})
		if err != nil || !strings.Contains(spec.Traceparent, "0af7651916cd43dd8448eb211c80319c") {
			t.Errorf("%s has the trace context %q, %v", name, spec.Traceparent, err)
		}
	}
}

// TestOneLineOfLogForEachCall, without what people wrote.
func TestOneLineOfLogForEachCall(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	resp, _ := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "my secret question"}`)
	id, lines := resp.Header.Get("X-Request-Id"), 0
	for line := range strings.Lines(w.logs.String()) {
		if strings.Contains(line, id) {
			lines++
			if !strings.Contains(line, `"method":"/loopd.v1.RunService/CreateRun"`) || !strings.Contains(line, `"code":"OK"`) {
				t.Errorf("the line is %s", line)
			}
		}
	}
	if lines != 1 || strings.Contains(w.logs.String(), "my secret question") {
		t.Errorf("%d lines for request %s:\n%s", lines, id, w.logs)
	}
}
