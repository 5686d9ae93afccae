package server_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// exported are the parts of a run's export.
func (w *world) exported(run string) (parts []*loopdv1.ExportRunResponse, err error) {
	w.t.Helper()
	stream, err := w.runs.ExportRun(w.t.Context(), &loopdv1.ExportRunRequest{Name: run})
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return parts, err
		}
		parts = append(parts, part)
	}
}

func TestExportRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	created := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "get_order", `{"order":1}`))
	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"}, loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "a long [cut]", Cut: true, Bytes: 12})
	k.finish("Done.")
	run, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: created.GetName()})
	if err != nil {
		t.Fatal(err)
	}

	parts, err := w.exported(run.GetName())
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(run, parts[0].GetHead(), protocmp.Transform()); diff != "" {
		t.Errorf("the head (-want +got):\n%s", diff)
	}
	journal, err := w.runs.ListEvents(t.Context(), &loopdv1.ListEventsRequest{Parent: run.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	var events []*loopdv1.Event
	var cost []string
	for _, part := range parts {
		if part.GetRun() != run.GetName() {
			t.Errorf("a part is of %q", part.GetRun())
		}
		if part.GetEvent() != nil {
			events = append(events, part.GetEvent())
		}
		if call := part.GetModelCall(); call != nil {
			cost = append(cost, call.GetPurpose()+" "+call.GetCostUsd())
		}
	}
	if diff := cmp.Diff(journal.GetEvents(), events, protocmp.Transform()); diff != "" {
		t.Errorf("the journal (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"conversation 0.0002", "conversation 0.0002"}, cost); diff != "" {
		t.Errorf("the model calls: %s", diff)
	}

	// The same over REST, a part to a line.
	_, body := w.do(http.MethodGet, "/v1/"+run.GetName()+":export", "")
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	if len(lines) != len(parts) {
		t.Errorf("REST has %d lines, gRPC %d parts", len(lines), len(parts))
	}
	for _, line := range lines {
		var part struct{ Result struct{ Run string } }
		if err := json.Unmarshal([]byte(line), &part); err != nil || part.Result.Run != run.GetName() {
			t.Errorf("%v: %s", err, line)
		}
	}
	if _, err := w.exported("runs/0190a000-0000-7000-8000-000000000000"); status.Code(err) != codes.NotFound {
		t.Errorf("export of a run that does not exist: %v", err)
	}
}

func TestRetentionRules(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.run()
	w.claim().finish("Done.")
	keeps := loopdv1.NewRetentionServiceClient(w.conn)
	set := func(r *loopdv1.Retention) *loopdv1.Retention {
		t.Helper()
		answer, err := keeps.SetRetention(t.Context(), &loopdv1.SetRetentionRequest{Retention: r})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const day = 24 * time.Hour

	set(&loopdv1.Retention{Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(90 * day)}})
	w.rest(http.MethodPost, "/v1/retentions:set", `{"retention": {"agent": "agents/support", "duration": "2592000s"}}`)

	list, err := keeps.ListRetentions(t.Context(), &loopdv1.ListRetentionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*loopdv1.Retention{
		{Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(90 * day)}, Source: loopdv1.RetentionSource_RETENTION_SOURCE_ALL_AGENTS, Author: "unauthenticated"},
		{Agent: "agents/support", Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(30 * day)}, Source: loopdv1.RetentionSource_RETENTION_SOURCE_AGENT, Author: "unauthenticated", EndedRuns: 1},
	}
	if diff := cmp.Diff(want, list.GetRetentions(), protocmp.Transform(), protocmp.IgnoreFields(&loopdv1.Retention{}, "update_time", "oldest_end_time")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	w.same(list, http.MethodGet, "/v1/retentions")
	if got := set(&loopdv1.Retention{Agent: "agents/support"}); got.GetDuration().AsDuration() != 90*day {
		t.Errorf("without a rule of its own the agent keeps %v", got)
	}
	if got := set(&loopdv1.Retention{}); !got.GetForever() || got.GetSource() != loopdv1.RetentionSource_RETENTION_SOURCE_OPERATOR {
		t.Errorf("without any rule it is %v, want what the operator says", got)
	}
	for name, bad := range map[string]*loopdv1.Retention{
		"short":   {Keep: &loopdv1.Retention_Duration{Duration: durationpb.New(time.Minute)}},
		"unknown": {Agent: "agents/nobody", Keep: &loopdv1.Retention_Forever{Forever: true}},
		"no":      {Keep: &loopdv1.Retention_Forever{}},
	} {
		if _, err := keeps.SetRetention(t.Context(), &loopdv1.SetRetentionRequest{Retention: bad}); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}
