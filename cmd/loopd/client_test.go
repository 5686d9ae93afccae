package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

var update = flag.Bool("update", false, "write the golden files")

// fakeServer answers as the test tells it and keeps the last request.
type fakeServer struct {
	loopdv1.UnimplementedRunServiceServer
	loopdv1.UnimplementedAgentServiceServer
	loopdv1.UnimplementedApprovalServiceServer
	loopdv1.UnimplementedToolServiceServer
	loopdv1.UnimplementedPolicyServiceServer
	loopdv1.UnimplementedUsageServiceServer
	loopdv1.UnimplementedBudgetServiceServer
	loopdv1.UnimplementedGuardServiceServer

	mu      sync.Mutex
	request proto.Message
	err     error // every unary request fails with it
	run     *loopdv1.Run
	call    *loopdv1.ToolCall
	agent   *loopdv1.Agent
	pages   []*loopdv1.ListRunsResponse
	// Child runs of the run and tool calls of any, which are read without being kept as
	// the last request.
	children  []*loopdv1.Run
	calls     []*loopdv1.ToolCall
	submitted *loopdv1.SubmitToolResultsResponse
	approval  *loopdv1.Approval
	tool      *loopdv1.RegisteredTool
	mcp       *loopdv1.ListMcpToolsResponse
	imported  *loopdv1.ImportOpenApiResponse
	answer    *loopdv1.CallToolResponse
	result    *loopdv1.ToolCallResult
	policy    *loopdv1.Policy
	usage     []*loopdv1.QueryUsageResponse // pages
	budget    *loopdv1.Budget
	judged    []*loopdv1.TestLimitsResponse
	suggested *loopdv1.SuggestLimitsResponse
	journal   []*loopdv1.Event
	keeper    *fakeKeeper
	// What the inbox holds each time that somebody looks. The last look is told.
	inbox    [][]*loopdv1.Approval
	lastLook func()
	// Streams by order of arrival, from where each was asked for, and whether the last
	// one was asked for deltas.
	streams []func(grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]) error
	after   []int64
	deltas  bool
	// How long the client would have waited for the last call of a tool.
	toolPatience time.Duration
}

func (f *fakeServer) got(req proto.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.request = req
	return f.err
}

func (f *fakeServer) CreateRun(_ context.Context, req *loopdv1.CreateRunRequest) (*loopdv1.Run, error) {
	return f.run, f.got(req)
}

func (f *fakeServer) GetRun(_ context.Context, req *loopdv1.GetRunRequest) (*loopdv1.Run, error) {
	return f.run, f.got(req)
}

func (f *fakeServer) CancelRun(_ context.Context, req *loopdv1.CancelRunRequest) (*loopdv1.Run, error) {
	return f.run, f.got(req)
}

func (f *fakeServer) PauseRun(_ context.Context, req *loopdv1.PauseRunRequest) (*loopdv1.Run, error) {
	return f.run, f.got(req)
}

func (f *fakeServer) ResumeRun(_ context.Context, req *loopdv1.ResumeRunRequest) (*loopdv1.Run, error) {
	return f.run, f.got(req)
}

func (f *fakeServer) ApproveToolCall(_ context.Context, req *loopdv1.ApproveToolCallRequest) (*loopdv1.ToolCall, error) {
	return f.call, f.got(req)
}

func (f *fakeServer) DenyToolCall(_ context.Context, req *loopdv1.DenyToolCallRequest) (*loopdv1.ToolCall, error) {
	return f.call, f.got(req)
}

func (f *fakeServer) ResolveToolCall(_ context.Context, req *loopdv1.ResolveToolCallRequest) (*loopdv1.ToolCall, error) {
	return f.call, f.got(req)
}

func (f *fakeServer) UpdateAgent(_ context.Context, req *loopdv1.UpdateAgentRequest) (*loopdv1.Agent, error) {
	return f.agent, f.got(req)
}

func (f *fakeServer) GetAgent(_ context.Context, req *loopdv1.GetAgentRequest) (*loopdv1.Agent, error) {
	return f.agent, f.got(req)
}

func (f *fakeServer) ListAgents(_ context.Context, req *loopdv1.ListAgentsRequest) (*loopdv1.ListAgentsResponse, error) {
	return &loopdv1.ListAgentsResponse{Agents: []*loopdv1.Agent{f.agent}}, f.got(req)
}

// ListRuns serves the pages in order; the token says how many are behind.
func (f *fakeServer) ListRuns(_ context.Context, req *loopdv1.ListRunsRequest) (*loopdv1.ListRunsResponse, error) {
	if req.GetParent() == fullRun {
		return &loopdv1.ListRunsResponse{Runs: f.children}, nil
	}
	if err := f.got(req); err != nil {
		return nil, err
	}
	return f.pages[len(req.GetPageToken())], nil
}

func (f *fakeServer) StreamEvents(req *loopdv1.StreamEventsRequest, s grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]) error {
	f.mu.Lock()
	f.after, f.deltas = append(f.after, req.GetAfterSeq()), req.GetIncludeDeltas()
	if len(f.after) > len(f.streams) {
		f.mu.Unlock()
		return status.Error(codes.Unavailable, "no more streams")
	}
	stream := f.streams[len(f.after)-1]
	f.mu.Unlock()
	return stream(s)
}

// terminal runs loopd's client commands against a fake server.
type terminal struct {
	server *fakeServer
	client *client
	stdin  string
	ctx    context.Context
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func setup(t *testing.T) *terminal {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeServer{}
	fake.keeper = &fakeKeeper{fake: fake}
	server := grpc.NewServer()
	loopdv1.RegisterRunServiceServer(server, fake)
	loopdv1.RegisterAgentServiceServer(server, fake)
	loopdv1.RegisterApprovalServiceServer(server, fake)
	loopdv1.RegisterToolServiceServer(server, fake)
	loopdv1.RegisterPolicyServiceServer(server, fake)
	loopdv1.RegisterUsageServiceServer(server, fake)
	loopdv1.RegisterBudgetServiceServer(server, fake)
	loopdv1.RegisterGuardServiceServer(server, fake)
	loopdv1.RegisterRetentionServiceServer(server, fake.keeper)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		// A test that asks for nothing may stop the server before it serves.
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	term := &terminal{server: fake, ctx: t.Context()}
	env := map[string]string{"LOOPD_SERVER": listener.Addr().String()}
	term.client = &client{
		retryWait: time.Millisecond, retryTries: 3, silence: time.Minute, terminal: func(io.Writer) bool { return false },
		now: func() time.Time { return noon.Add(time.Minute) },
	}
	term.client.env.Getenv = func(name string) string { return env[name] }
	return term
}

// loopd runs a command line and returns the exit code.
func (term *terminal) loopd(args ...string) int {
	term.stdout.Reset()
	term.stderr.Reset()
	term.client.env.Stdout, term.client.env.Stderr = &term.stdout, &term.stderr
	term.client.env.Stdin = strings.NewReader(term.stdin)
	root := &cobra.Command{Use: "loopd", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(term.client.groups()...)
	root.SetArgs(args)
	return report(&term.stderr, root.ExecuteContext(term.ctx))
}

// wantCode checks an exit code and shows what was said when it is another.
func (term *terminal) wantCode(t *testing.T, want, got int) {
	t.Helper()
	if got != want {
		t.Errorf("exit code %d, want %d; standard error:\n%s", got, want, term.stderr.String())
	}
}

// wantRequest compares the last request that the server got.
func (term *terminal) wantRequest(t *testing.T, want proto.Message) {
	t.Helper()
	term.server.mu.Lock()
	defer term.server.mu.Unlock()
	if diff := cmp.Diff(want, term.server.request, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// golden compares a text with a file in testdata; -update writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestExitCodesOfRefusals(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 2, codes.Unauthenticated: 4, codes.PermissionDenied: 4, codes.NotFound: 5,
		codes.AlreadyExists: 6, codes.FailedPrecondition: 6, codes.Aborted: 6, codes.Internal: 1, codes.Unavailable: 1,
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.err = status.Error(code, "refused for the test")
			term.wantCode(t, want, term.loopd("run", "show", runID))
			if !strings.Contains(term.stderr.String(), "refused for the test") || term.stdout.Len() != 0 {
				t.Errorf("stderr %q, stdout %q", term.stderr.String(), term.stdout.String())
			}
		})
	}
}

func TestRefusalNamesFields(t *testing.T) {
	t.Parallel()
	term := setup(t)
	refusal, err := status.New(codes.InvalidArgument, "1 field is wrong").WithDetails(
		&errdetails.ErrorInfo{Reason: "FIELD_INVALID", Domain: "loopd.dev"},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "input", Description: "is empty"}}})
	if err != nil {
		t.Fatal(err)
	}
	term.server.err = refusal.Err()
	term.wantCode(t, exitUsage, term.loopd("run", "start", "--agent", "support", "--input", "x"))
	if diff := cmp.Diff("loopd: 1 field is wrong (FIELD_INVALID)\n  input: is empty\n", term.stderr.String()); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"run", "run bogus", "run show", "run show a b", "run start", "run start --agent a", "run start --bogus",
		"run list --state bogus", "run list --limit -1", "run list -o xml", "run approve no-call", "run resolve r/c1-1",
		"run resolve r/c1-1 --as maybe", "run start -f - --input -", "agent", "agent apply", "agent apply -f /does/not/exist",
		"run start --agent a --input x --wait --watch",
		"run pause", "run resume", "run resume r --raise max_cost_usd", "run resume r --raise max_cost=2", "run resume r --raise max_cost_usd=dear",
		"run resume r --raise max_iterations=1.5", "run resume r --raise deadline=20", "run resume r --raise context_stop_at=all",
		"run resume r --raise max_iterations=1 --raise max_iterations=2", "run resume r --raise no_progress_stop=maybe",
		"run submit", "run submit r/c1-1", "run submit r c1-1 --result @/does/not/exist", "run submit r c1-1 --failed --result=", "run doubts r", "run result", "run result no-call",
		"run resolve r c1-1 --as retry --result done", "run resolve r c1-1 c1-2 --as retry",
		"approval", "approval list --state bogus", "approval list --limit -1", "approval show", "approval show no-call", "approval approve .c1-1",
		"approval approve r.c1-1 --args 7", "approval approve r.c1-1 --args []", "approval approve r.c1-1 --args {}{}", "approval approve r.c1-1 --args -",
		"approval deny", "approval answer r.c1-1 a b", "approval answer r.c1-1 a --choice b", "approval watch --interval 0s",
		"tool", "tool apply", "tool apply -f /does/not/exist", "tool show", "tool archive", "tool import-openapi", "tool import-openapi /does/not/exist",
		"tool list-mcp", "tool list-mcp http://x --header bogus", "tool accept", "policy", "policy apply", "policy show", "policy archive a b",
		"budget", "budget create a", "budget create a --amount 1", "budget create a --amount 1 --per week", "budget create a --amount 1 --per day --label x",
		"budget create a --amount 1 --per day --label x=y --agent z", "budget create a --amount 1 --per day --when-spent nudge", "budget show",
		"budget raise a", "budget raise a --by 1 --to 2", "budget update a", "budget update a --reason x", "budget events a --limit 0", "budget archive",
		"guard", "guard explain", "guard report r", "guard report r x", "guard report r 0", "guard list -o json", "guard suggest", "guard suggest a --tolerance 60%",
		"guard suggest a --tolerance x", "guard suggest a --since 0d", "guard suggest a --max-runs 1001", "guard export --since soon", "guard test", "guard test /does/not/exist",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.wantCode(t, exitUsage, term.loopd(strings.Fields(line)...))
			if term.stderr.Len() == 0 || term.stdout.Len() != 0 || term.server.request != nil {
				t.Errorf("stderr %q, stdout %q, request %v", term.stderr.String(), term.stdout.String(), term.server.request)
			}
		})
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	term := setup(t)
	term.wantCode(t, exitOther, term.loopd("run", "list", "--server", addr))
	if !strings.Contains(term.stderr.String(), "no loopd answers at "+addr) {
		t.Errorf("stderr: %q", term.stderr.String())
	}
}

func TestTerminalIsNotSteered(t *testing.T) {
	t.Parallel()
	const hostile = "ok\x1b[2J\u202egnp\x07\ttab\nline"
	if diff := cmp.Diff("ok�[2J�gnp�\ttab\nline", clean(hostile)); diff != "" {
		t.Errorf("clean (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("ok�[2J�gnp� tab line", oneLine(hostile)); diff != "" {
		t.Errorf("oneLine (-want +got):\n%s", diff)
	}
}

// A loopd that cannot do its part is not one that is not there.
func TestRefusalOfAServerThatIsThere(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.err = refusal(t, codes.Unavailable, "the MCP server did not tell its tools", "MCP_SERVER_FAILED")
	term.wantCode(t, exitOther, term.loopd("tool", "list-mcp", "https://mcp.example"))
	if diff := cmp.Diff("loopd: the MCP server did not tell its tools (MCP_SERVER_FAILED)\n", term.stderr.String()); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
}

// refusal is an error as loopd's API gives it.
func refusal(t *testing.T, code codes.Code, message, reason string) error {
	t.Helper()
	refused, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "loopd.dev"})
	if err != nil {
		t.Fatal(err)
	}
	return refused.Err()
}
