package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// fakeKeeper answers for the retention of runs.
type fakeKeeper struct {
	loopdv1.UnimplementedRetentionServiceServer

	fake *fakeServer
	list *loopdv1.ListRetentionsResponse
}

func (f *fakeKeeper) ListRetentions(_ context.Context, req *loopdv1.ListRetentionsRequest) (*loopdv1.ListRetentionsResponse, error) {
	return f.list, f.fake.got(req)
}

func (f *fakeKeeper) SetRetention(_ context.Context, req *loopdv1.SetRetentionRequest) (*loopdv1.Retention, error) {
	return req.GetRetention(), f.fake.got(req)
}

func TestRetentionCommands(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.keeper.list = &loopdv1.ListRetentionsResponse{Retentions: []*loopdv1.Retention{
		{Keep: &loopdv1.Retention_Forever{Forever: true}, Source: loopdv1.RetentionSource_RETENTION_SOURCE_OPERATOR},
		{
			Agent: "agents/support", Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(30 * 24 * time.Hour)}, Source: loopdv1.RetentionSource_RETENTION_SOURCE_AGENT,
			EndedRuns: 1200, ExpiredRuns: 17, OldestEndTime: timestamppb.New(noon),
		},
	}}

	term.wantCode(t, 0, term.loopd("retention", "list"))
	golden(t, "retention_list", term.stdout.String())

	term.wantCode(t, 0, term.loopd("retention", "set", "support", "36h", "--yes"))
	term.wantRequest(t, &loopdv1.SetRetentionRequest{Retention: &loopdv1.Retention{
		Agent: "agents/support", Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(36 * time.Hour)},
	}})
	term.wantCode(t, 0, term.loopd("retention", "set", "--all", "forever"))
	term.wantRequest(t, &loopdv1.SetRetentionRequest{Retention: &loopdv1.Retention{Keep: &loopdv1.Retention_Forever{Forever: true}}})
	term.wantCode(t, 0, term.loopd("retention", "set", "support", "default", "--yes"))
	term.wantRequest(t, &loopdv1.SetRetentionRequest{Retention: &loopdv1.Retention{Agent: "agents/support"}})
	for _, bad := range [][]string{{"support"}, {"support", "0"}, {"support", "5m", "--yes"}, {"--all", "support", "1d"}, {"support", "never"}} {
		term.wantCode(t, exitUsage, term.loopd(append([]string{"retention", "set"}, bad...)...))
	}
}

func TestHowLongRunsAreKept(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"forever": 0, "90d": 2160 * time.Hour, "36h": 36 * time.Hour, "1h": time.Hour} {
		if got, err := keepOf(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
		if got := keepText(want); text != "36h" && text != "1h" && got != text {
			t.Errorf("%s is written %s", text, got)
		}
	}
	for _, text := range []string{"", "0", "0d", "59m", "-1d", "40000d", "Forever", "90"} {
		if got, err := keepOf(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}

const oneAnswer = "models: {worker: {answers: [{text: Done.}]}}\n"

// A loopd that is told to deletes what is older, after it has written all of it to a
// file that guard test can read.
func TestRunsAreExportedThenDeleted(t *testing.T) {
	t.Parallel()
	db, dir := pgURL(t), t.TempDir()
	p := start(t, db, oneAnswer)
	p.agent("worker")
	run := p.waitEnd(p.start("worker").GetName())
	p.kill()
	conn, err := pgx.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "UPDATE runs SET ended_at = now() - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}

	p = start(t, db, oneAnswer, "--retention", "1h", "--retention-export-dir", dir)

	for deadline := time.Now().Add(patience); ; {
		_, err := p.runs.GetRun(p.context, &loopdv1.GetRunRequest{Name: run.GetName()})
		if status.Code(err) == codes.NotFound {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the run is still there: %v", err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "default", "*", strings.TrimPrefix(run.GetName(), "runs/")+".jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("exports: %v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(text), `"head":{`) || !strings.Contains(string(text), `"modelCall":{`) {
		t.Errorf("the export (%v):\n%s", err, text)
	}
	var ended loop.RunState
	err = (&client{}).readJournals(files[0], func(ref loop.RunRef, events []loop.Event) error {
		state, err := loop.Fold(ref, events)
		if err == nil {
			ended = state.Head().State
		}
		return err
	})
	if err != nil || ended != loop.StateSucceeded {
		t.Errorf("the journal of the export ends as %s, %v", ended, err)
	}
}

func TestAnExportThatBreaksOffLeavesNoFile(t *testing.T) {
	t.Parallel()
	term := setup(t) // its server exports nothing
	file := filepath.Join(t.TempDir(), "run.jsonl")
	if code := term.loopd("run", "export", runID, "--to", file); code == 0 {
		t.Error("it says that it exported the run")
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
