package main

import (
	"strings"
	"testing"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// While replicas are upgraded, an older one works on a newer schema and meets runs whose
// journals it cannot read. It drives what it understands, and gives the rest back at once,
// as it is, to whoever can read it.
func TestOlderReplicaLeavesNewerRunsAlone(t *testing.T) {
	t.Parallel()
	url, tools := pgURL(t), newToolServer(t)
	db := connect(t, url)
	first := start(t, url, callThenAnswer)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	run := first.start("worker")
	tools.next(t)
	first.kill()
	close(tools.release)
	id := strings.TrimPrefix(run.GetName(), "runs/")
	for _, newer := range []string{
		`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`,
		`ALTER TABLE runs ADD COLUMN of_the_future text NOT NULL DEFAULT 'x'`,
		`INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
			SELECT tenant_id, run_id, next_seq, 'teleported', now(), lease_epoch, '{"to":"the moon"}' FROM runs`,
		`UPDATE runs SET next_seq = next_seq + 1`,
	} {
		if _, err := db.Exec(t.Context(), newer); err != nil {
			t.Fatalf("%s: %v", newer, err)
		}
	}
	journal := func() (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE run_id = $1`, id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := journal()

	older := start(t, url, callThenAnswer)
	older.says("was written by a newer loopd")
	other := older.start("worker")

	if got := older.waitEnd(other.GetName()); got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("a run that it can read ended as %s: %s", got.GetState(), got.GetStop().GetMessage())
	}
	got, err := older.runs.GetRun(older.context, &loopdv1.GetRunRequest{Name: run.GetName()})
	if err != nil || got.GetState() != loopdv1.RunState_RUN_STATE_RUNNING || got.GetEndTime() != nil {
		t.Errorf("the newer run is %s, ended %v, %v", got.GetState(), got.GetEndTime(), err)
	}
	if after := journal(); after != before {
		t.Errorf("its journal had %d events and has %d", before, after)
	}
	var free bool
	var epoch int64
	const lease = `SELECT lease_owner IS NULL, lease_epoch FROM runs WHERE run_id = $1`
	if err := db.QueryRow(t.Context(), lease, id).Scan(&free, &epoch); err != nil || !free || epoch != 2 {
		t.Errorf("the newer run is free: %v, claimed %d times, want twice: error %v", free, epoch, err)
	}

	// What the newer binary would do with its own event: go on after it.
	for _, known := range []string{
		`ALTER TABLE events DISABLE TRIGGER USER`,
		`DELETE FROM events WHERE kind = 'teleported'`,
		`UPDATE runs SET next_seq = next_seq - 1 WHERE ended_at IS NULL`,
	} {
		if _, err := db.Exec(t.Context(), known); err != nil {
			t.Fatalf("%s: %v", known, err)
		}
	}
	newer := start(t, url, callThenAnswer) // while the older one is still there
	if got := newer.waitEnd(run.GetName()); got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("the newer run ended as %s: %s", got.GetState(), got.GetStop().GetMessage())
	}
	newer.says("run released")
	if code := older.terminate(); code != 0 {
		t.Errorf("the older replica ended with %d", code)
	}
}

// says waits until the process has logged something.
func (p *process) says(text string) {
	p.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !strings.Contains(p.out.String(), text) {
		select {
		case <-look.C:
		case <-p.exited:
			p.t.Fatalf("loopd ended before it said %q:\n%s", text, p.out)
		case <-p.context.Done():
			p.t.Fatalf("loopd never said %q:\n%s", text, p.out)
		}
	}
}
