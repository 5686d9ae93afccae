package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// eventually waits until done is true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// writer is a worker's sender of deltas, in a process of its own so to speak.
func (w *world) writer() *postgres.Deltas {
	w.t.Helper()
	store, err := postgres.Open(w.t.Context(), postgres.Config{URL: w.database})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(store.Close)
	deltas := postgres.NewDeltas(store)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for _, part := range deltas.Parts() {
		go func() { ended <- part(ctx) }()
	}
	w.t.Cleanup(func() {
		cancel()
		for range deltas.Parts() {
			if err := <-ended; err != nil {
				w.t.Errorf("a part of the deltas failed: %v", err)
			}
		}
	})
	return deltas
}

// hearing waits until that many servers and one worker listen.
func (w *world) hearing(servers int) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.database)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	eventually(w.t, "everybody to listen", func() bool {
		var hear, watch int
		err := conn.QueryRow(w.t.Context(), `SELECT count(*) FILTER (WHERE query = 'LISTEN "loopd_deltas"'), count(*) FILTER (WHERE query = 'LISTEN "loopd_watch"')
			FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'`).Scan(&hear, &watch)
		if err != nil {
			w.t.Fatal(err)
		}
		return hear == servers && watch == 1
	})
}

func text(s string) loop.Delta { return loop.Delta{Kind: loop.PartText, Text: s} }

func refOf(run *loopdv1.Run) loop.RunRef {
	return loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run.GetName(), "runs/")}
}

// written reads frames until the deltas among them end with a text, and returns what
// came, with the texts of deltas that follow each other in one.
func written(t *testing.T, read func() (frame, bool), end string) []string {
	t.Helper()
	var got []string
	for {
		f, ok := read()
		switch {
		case !ok:
			return append(got, "closed")
		case f.event == "":
			continue
		case f.event != "delta":
			got = append(got, f.id+" "+f.event)
			if f.event == end {
				return got
			}
			continue
		}
		m := decode(t, []byte(f.data))
		line := "delta"
		if m["gap"] == true {
			line = "gap"
		}
		if f.id != "" {
			line += " with id " + f.id
		}
		for _, fragment := range m["fragments"].([]any) {
			line += " " + at(fragment.(map[string]any), "kind").(string) + ":" + at(fragment.(map[string]any), "text").(string)
		}
		if last := len(got) - 1; last >= 0 && strings.HasPrefix(line, "delta text:") && strings.Contains(got[last], "text:") {
			got[last] += strings.TrimPrefix(line, "delta text:")
		} else {
			got = append(got, line)
		}
		if strings.HasSuffix(got[len(got)-1], end) {
			return got
		}
	}
}

// TestAnswersAreSeenWhileTheyAreWritten by clients of two replicas, while a third
// drives the run.
func TestAnswersAreSeenWhileTheyAreWritten(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := setupOn(t, w.database)
	run := w.run()
	deltas := w.writer()
	w.hearing(2)
	k := w.claim()
	_, here := w.follow("/v1/"+run.GetName()+"/events?include_deltas=true", "Accept", "text/event-stream")
	_, there := other.follow("/v1/"+run.GetName()+"/events?includeDeltas=true", "Accept", "text/event-stream")
	_, plain := other.follow("/v1/"+run.GetName()+"/events", "Accept", "text/event-stream")
	eventually(t, "the worker to hear that the run is watched", func() bool { return deltas.Watched(refOf(run)) })
	readers := map[string]func() (frame, bool){"this replica": here, "the other replica": there}

	call := k.begin()
	for _, word := range []string{"On ", "its", " way."} {
		deltas.Emit(refOf(run), call, text(word))
	}
	for name, read := range readers {
		want := []string{"1 created", "2 claimed", "3 model_started", "delta text:On its way."}
		if diff := cmp.Diff(want, written(t, read, "way.")); diff != "" {
			t.Errorf("%s, first answer (-want +got):\n%s", name, diff)
		}
	}
	k.complete(call, loop.FinishToolCalls, toolCall("c1-1", "get_order", `{}`))
	for name, read := range readers {
		if diff := cmp.Diff([]string{"4 model_answered"}, written(t, read, "model_answered")); diff != "" {
			t.Errorf("%s, its end (-want +got):\n%s", name, diff)
		}
	}
	deltas.Emit(refOf(run), call, text("too late"))
	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"})
	k.append(loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "{}"})
	call = k.begin()
	deltas.Emit(refOf(run), call, loop.Delta{Kind: loop.PartReasoning, Text: "Sent."})
	for name, read := range readers {
		want := []string{"5 call_started", "6 call_finished", "7 model_started", "delta reasoning:Sent."}
		if diff := cmp.Diff(want, written(t, read, "Sent.")); diff != "" {
			t.Errorf("%s, second answer (-want +got):\n%s", name, diff)
		}
	}
	k.complete(call, loop.FinishDone, loop.TextPart("Sent."))
	k.append(loop.AnswerAccepted{}, loop.Finished{State: loop.StateSucceeded, Stop: loop.Stop{Reason: loop.Completed, Message: "Done."}, Answer: "Sent."})
	want := []string{
		"1 created", "2 claimed", "3 model_started", "4 model_answered", "5 call_started", "6 call_finished",
		"7 model_started", "8 model_answered", "9 answer_accepted", "10 finished", "end",
	}
	if diff := cmp.Diff(want, ids(plain, everything)); diff != "" {
		t.Errorf("a client that asked for no deltas (-want +got):\n%s", diff)
	}
}

// TestAClientThatConnectsAgainWithinAnAnswer is told that it lacks the beginning, and
// gets no event twice.
func TestAClientThatConnectsAgainWithinAnAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	deltas := w.writer()
	w.hearing(1)
	k := w.claim()
	call := k.begin()
	path := "/v1/" + run.GetName() + "/events?include_deltas=true"
	resp, read := w.follow(path, "Accept", "text/event-stream")
	eventually(t, "the worker to hear that the run is watched", func() bool { return deltas.Watched(refOf(run)) })
	deltas.Emit(refOf(run), call, text("One, "))
	written(t, read, "One, ")
	_ = resp.Body.Close()
	_, again := w.follow(path, "Accept", "text/event-stream", "Last-Event-ID", "3")
	if first, _ := again(); first != (frame{comment: "ping"}) {
		t.Fatalf("the first frame is %+v, want a ping", first)
	}

	deltas.Emit(refOf(run), call, text("two."))
	if diff := cmp.Diff([]string{"gap text:two."}, written(t, again, "two.")); diff != "" {
		t.Errorf("after connecting again (-want +got):\n%s", diff)
	}
	k.complete(call, loop.FinishDone, loop.TextPart("One, two."))
	if diff := cmp.Diff([]string{"4 model_answered"}, written(t, again, "model_answered")); diff != "" {
		t.Errorf("the end of the answer (-want +got):\n%s", diff)
	}
}

// TestASlowClientLosesDeltasAndHoldsUpNobody: it reads nothing until the answer is
// complete. Then it gets what was kept, is told of the gap, and misses no event.
func TestASlowClientLosesDeltasAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	deltas := w.writer()
	w.hearing(1)
	k := w.claim()
	call := k.begin()
	req := &loopdv1.StreamEventsRequest{Parent: run.GetName(), AfterSeq: 3, IncludeDeltas: true}
	slow, err := w.runs.StreamEvents(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Recv(); err != nil { // the heartbeat: it is subscribed
		t.Fatal(err)
	}
	fast, err := w.runs.StreamEvents(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fast.Recv(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker to hear that the run is watched", func() bool { return deltas.Watched(refOf(run)) })

	const chunk, chunks = 60_000, 30 // beyond what gRPC and the server keep for a stream
	for i := range chunks {
		deltas.Emit(refOf(run), call, text(strings.Repeat("x", chunk)))
		for got := 0; got < chunk; {
			msg, err := fast.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if msg.GetDelta().GetGap() {
				t.Fatalf("the fast client has a gap in chunk %d", i)
			}
			for _, f := range msg.GetDelta().GetFragments() {
				got += len(f.GetText())
			}
		}
	}
	k.complete(call, loop.FinishDone, loop.TextPart("x"))
	k.append(loop.AnswerAccepted{}, loop.Finished{State: loop.StateSucceeded, Stop: loop.Stop{Reason: loop.Completed, Message: "Done."}, Answer: "x"})

	size, gaps, events := 0, 0, 0
	for {
		msg, err := slow.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if msg.GetEvent() != nil {
			events++
		}
		if msg.GetDelta().GetGap() {
			gaps++
		}
		for _, f := range msg.GetDelta().GetFragments() {
			size += len(f.GetText())
		}
	}
	if events != 3 || size == 0 || size >= chunk*chunks {
		t.Errorf("the slow client got %d events and %d bytes of deltas in %d gaps, want 3 events and less than %d bytes", events, size, gaps, chunk*chunks)
	}
}

// TestDeltasAsLines: they are in every form of the stream.
func TestDeltasAsLines(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	deltas := w.writer()
	w.hearing(1)
	k := w.claim()
	call := k.begin()
	resp, _ := w.follow("/v1/" + run.GetName() + "/events:stream?after_seq=3&include_deltas=true")
	eventually(t, "the worker to hear that the run is watched", func() bool { return deltas.Watched(refOf(run)) })
	deltas.Emit(refOf(run), call, loop.Delta{Kind: loop.PartToolCall, Tool: "get_order", Text: "{"})

	const want = `{"result":{"delta":{"modelCall":1,"fragments":[{"kind":"tool_call","text":"{","tool":"get_order"}],"gap":false}}}`
	var got strings.Builder
	for !strings.Contains(got.String(), want) {
		b := make([]byte, 512)
		n, err := resp.Body.Read(b)
		got.Write(b[:n])
		if err != nil {
			t.Fatalf("the stream ended with %v after %s", err, got.String())
		}
	}
}

// TestAnEndedRunHasNoDeltasToWaitFor: who asks for them gets the end at once.
func TestAnEndedRunHasNoDeltasToWaitFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.claim().finish("Done.")
	resp, body := w.do(http.MethodGet, "/v1/"+run.GetName()+"/events?include_deltas=true&after_seq=6", "", "Accept", "text/event-stream")
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "event: end") {
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
}
