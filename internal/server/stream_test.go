package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// frame is one server-sent event, or a comment.
type frame struct{ id, event, data, comment string }

// follow opens a run's events as a browser does.
func (w *world) follow(path string, headers ...string) (*http.Response, func() (frame, bool)) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return resp, func() (frame, bool) { return next(lines) }
}

// next reads one frame; false at the end of the stream.
func next(lines *bufio.Scanner) (frame, bool) {
	var f frame
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "":
			if lines.Text() == "" {
				return f, true
			}
			f.comment = value
		case "id":
			f.id = value
		case "event":
			f.event = value
		case "data":
			f.data = value
		}
	}
	return f, false
}

// ids reads frames up to the end event, or n events, and returns the ids and names.
func ids(read func() (frame, bool), n int) []string {
	var got []string
	for len(got) < n {
		f, ok := read()
		if !ok {
			return append(got, "closed")
		}
		if f.event != "" {
			got = append(got, strings.TrimSpace(f.id+" "+f.event))
		}
		if f.event == "end" {
			return got
		}
	}
	return got
}

const everything = 1 << 10

func TestServerSentEventsFollowARunToItsEnd(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()

	resp, read := w.follow("/v1/"+run.GetName()+"/events", "Accept", "text/html, text/event-stream;q=0.9, */*;q=0.1")
	for header, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
	} {
		if got := resp.Header.Get(header); got != want {
			t.Errorf("header %s = %q, want %q", header, got, want)
		}
	}
	if first, _ := read(); first != (frame{comment: "ping"}) {
		t.Errorf("the first frame is %+v, want a ping", first)
	}
	f, _ := read()
	if f.id != "1" || f.event != "created" || at(decode(t, []byte(f.data)), "body", "spec", "input") != "Where is my order?" {
		t.Errorf("the first event is %+v", f)
	}
	k := w.claim()
	k.finish("On its way.")

	want := []string{"2 claimed", "3 model_started", "4 model_answered", "5 answer_accepted", "6 finished", "end"}
	if diff := cmp.Diff(want, ids(read, everything)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if f, ok := read(); ok {
		t.Errorf("after the end came %+v", f)
	}
}

// TestServerSentEventsResumeWithoutLossOrRepetition cuts the connection after every
// single event, while the run goes on.
func TestServerSentEventsResumeWithoutLossOrRepetition(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "get_order", `{}`))

	const all = 9
	var got []string
	last := "0"
	for len(got) < all {
		if len(got) == 4 {
			k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"})
			k.append(loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "{}"})
			k.append(loop.Suspended{Reason: loop.WaitDrain})
			k = w.claim()
			k.append(loop.Finished{State: loop.StateFailed, Stop: loop.Stop{Reason: loop.InternalError, Message: "Enough."}})
		}
		resp, read := w.follow("/v1/"+run.GetName()+"/events?after_seq=0", "Accept", "text/event-stream", "Last-Event-ID", last)
		f, ok := read()
		for ok && f.event == "" {
			f, ok = read()
		}
		if !ok {
			t.Fatalf("the stream after event %s was closed", last)
		}
		got, last = append(got, f.id+" "+f.event), f.id
		_ = resp.Body.Close()
	}
	want := []string{
		"1 created", "2 claimed", "3 model_started", "4 model_answered", "5 call_started", "6 call_finished",
		"7 suspended", "8 claimed", "9 finished",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	_, read := w.follow("/v1/"+run.GetName()+"/events?after_seq=9", "Accept", "text/event-stream")
	if diff := cmp.Diff([]string{"end"}, ids(read, everything)); diff != "" {
		t.Errorf("a client that has everything gets (-want +got):\n%s", diff)
	}
	if w.metric("loopd_sse_resumes_total") < 9 {
		t.Errorf("loopd_sse_resumes_total = %v, want at least 9", w.metric("loopd_sse_resumes_total"))
	}
}

func TestServerSentEventsRefuseLikeTheRestOfTheAPI(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, c := range map[string]struct {
		path, lastEventID, reason string
		status                    int
	}{
		"no such run":    {"/v1/runs/0190f5fe-7c00-7a00-8000-000000000000/events", "", "RUN_NOT_FOUND", 404},
		"not an id":      {"/v1/runs/nonsense/events", "", "FIELD_INVALID", 400},
		"not a sequence": {"/v1/runs/0190f5fe-7c00-7a00-8000-000000000000/events", "abc", "FIELD_INVALID", 400},
	} {
		resp, body := w.do(http.MethodGet, c.path, "", "Accept", "text/event-stream", "Last-Event-ID", c.lastEventID)
		p := decode(t, body)
		if resp.StatusCode != c.status || p["reason"] != c.reason || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: answered %d %s %s", name, resp.StatusCode, resp.Header.Get("Content-Type"), body)
		}
	}
}

func TestEventsWithoutAnEventStreamArePages(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.claim().finish("Done.")

	page := w.rest(http.MethodGet, "/v1/"+run.GetName()+"/events?after_seq=2&page_size=2", "", "Accept", "application/json")
	if at(page, "events", "0", "seq") != "3" || at(page, "events", "1", "kind") != "model_answered" || page["hasMore"] != true {
		t.Errorf("page is %v", page)
	}
	if at(page, "events", "1", "iteration") != 1.0 || at(page, "events", "1", "body", "message", "native") != nil {
		t.Errorf("the model's answer is %v", at(page, "events", "1"))
	}
	rest, err := w.runs.ListEvents(t.Context(), &loopdv1.ListEventsRequest{Parent: run.GetName(), AfterSeq: 4})
	if err != nil || len(rest.GetEvents()) != 2 || rest.GetHasMore() {
		t.Errorf("the last page is %v, %v", rest, err)
	}
}

func TestStreamEventsOverGRPC(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.claim().finish("Done.")

	stream, err := w.runs.StreamEvents(t.Context(), &loopdv1.StreamEventsRequest{Parent: run.GetName(), AfterSeq: 4})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch kind := msg.GetKind().(type) {
		case *loopdv1.StreamEventsResponse_Heartbeat:
			got = append(got, "heartbeat")
		case *loopdv1.StreamEventsResponse_Event:
			got = append(got, fmt.Sprint(kind.Event.GetSeq()))
		case *loopdv1.StreamEventsResponse_End:
			got = append(got, kind.End.GetState().String())
		}
	}
	if diff := cmp.Diff([]string{"heartbeat", "5", "6", "RUN_STATE_SUCCEEDED"}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestSilentStreamsShowThatTheyAreAlive(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.server.SetHeartbeat(10 * time.Millisecond)
	_, read := w.follow("/v1/"+run.GetName()+"/events?after_seq=1", "Accept", "text/event-stream")
	for range 4 {
		if f, ok := read(); !ok || f != (frame{comment: "ping"}) {
			t.Fatalf("got %+v, want a ping", f)
		}
	}
	if got := w.metric("loopd_sse_streams"); got != 1 {
		t.Errorf("loopd_sse_streams = %v, want 1", got)
	}
}

// TestEventsAsLines: who does not accept server-sent events gets the same as JSON.
func TestEventsAsLines(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	w.claim().finish("Done.")
	resp, body := w.do(http.MethodGet, "/v1/"+run.GetName()+"/events:stream?after_seq=5", "")
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	if resp.Header.Get("Content-Type") != "application/json" || len(lines) != 3 {
		t.Fatalf("answered %s %s", resp.Header.Get("Content-Type"), body)
	}
	if at(decode(t, []byte(lines[1])), "result", "event", "seq") != "6" || at(decode(t, []byte(lines[2])), "result", "end", "state") != "RUN_STATE_SUCCEEDED" {
		t.Errorf("lines are %q", lines)
	}
	resp, body = w.do(http.MethodGet, "/v1/runs/"+noRun+"/events:stream", "")
	if resp.StatusCode != http.StatusNotFound || decode(t, body)["reason"] != "RUN_NOT_FOUND" {
		t.Errorf("without a run: %d %s", resp.StatusCode, body)
	}
}

// TestShutdownEndsStreams: a follower must not hold up a shutdown, and must know
// that the run has not ended.
func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	stream, err := w.runs.StreamEvents(t.Context(), &loopdv1.StreamEventsRequest{Parent: run.GetName(), AfterSeq: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the heartbeat
		t.Fatal(err)
	}
	resp, read := w.follow("/v1/"+run.GetName()+"/events?after_seq=1", "Accept", "text/event-stream")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("answered %d", resp.StatusCode)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		t.Fatalf("shut down: %v", err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want UNAVAILABLE", err)
	}
	if diff := cmp.Diff([]string{"closed"}, ids(read, everything)); diff != "" {
		t.Errorf("server-sent events (-want +got):\n%s", diff)
	}
}
