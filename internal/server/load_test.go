package server_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestAnOldQueueShedsCreates: while runs wait too long for a worker, no new ones are
// taken; all else goes on.
func TestAnOldQueueShedsCreates(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	conn, err := pgx.Connect(t.Context(), w.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "UPDATE runs SET available_at = now() - interval '61 min'"); err != nil {
		t.Fatal(err)
	}
	body := `{"agent":"` + run.GetAgent() + `","input":"Again."}`
	resp, answer := w.do(http.MethodPost, "/v1/runs", body)
	for resp.StatusCode == http.StatusOK { // until the load was measured
		if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(0.05)"); err != nil {
			t.Fatal(err)
		}
		resp, answer = w.do(http.MethodPost, "/v1/runs", body)
	}
	if p := decode(t, answer); resp.StatusCode != http.StatusServiceUnavailable || p["reason"] != "OVERLOADED" || resp.Header.Get("Retry-After") != "900" {
		t.Errorf("answered %d %s, Retry-After %q", resp.StatusCode, answer, resp.Header.Get("Retry-After"))
	}
	if _, err := w.runs.ListRuns(t.Context(), &loopdv1.ListRunsRequest{}); err != nil {
		t.Errorf("a read: %v", err)
	}
	if _, err := w.runs.CancelRun(t.Context(), &loopdv1.CancelRunRequest{Name: run.GetName()}); err != nil {
		t.Errorf("a cancel: %v", err)
	}
	if w.metric(`loopd_shed_requests_total{call="create",why="queue_age"}`) < 1 {
		t.Error("nothing was counted")
	}
}

// TestASlowReaderIsCutAndGoesOn: it holds nobody up, and loses nothing.
func TestASlowReaderIsCutAndGoesOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.server.SetPatience(20 * time.Millisecond)
	run := w.run()
	k := w.claim()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil { //nolint:forcetypeassert // it dialled tcp
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /v1/%s/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n", run.GetName()); err != nil {
		t.Fatal(err)
	}
	for w.metric("loopd_sse_slow_readers_total") == 0 { // until what is on its way is more than the kernel takes
		k.append(loop.RateWaited{Provider: strings.Repeat("x", 50_000)})
	}
	k.append(loop.Finished{State: loop.StateFailed, Stop: loop.Stop{Reason: loop.InternalError, Message: "Enough."}})

	last := 0
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() { // what had been sent
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			if n, err := strconv.Atoi(id); err != nil || n != last+1 {
				t.Fatalf("after event %d came %s", last, id)
			}
			last++
		}
	}
	if last == int(k.state.Seq()) {
		t.Fatal("the slow reader got everything: it was not cut")
	}
	complete := last - 1 // the newest one may have been cut in two
	_, read := w.follow("/v1/"+run.GetName()+"/events", "Accept", "text/event-stream", "Last-Event-ID", strconv.Itoa(complete))
	for _, got := range ids(read, everything) {
		id, _, _ := strings.Cut(got, " ")
		if got == "end" {
			break
		}
		if complete++; id != strconv.Itoa(complete) {
			t.Fatalf("after event %d came %s", complete-1, got)
		}
	}
	if complete != int(k.state.Seq()) {
		t.Errorf("the stream went on to event %d of %d", complete, k.state.Seq())
	}
}
