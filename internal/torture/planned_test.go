package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestClusterIsWhatItsScriptSays shows how replicas and the judge reach a cluster, and
// that a script which says too little is refused.
func TestClusterIsWhatItsScriptSays(t *testing.T) {
	t.Parallel()
	script := func(says string) settings {
		path := filepath.Join(t.TempDir(), "cluster")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = urls ] && cat <<'X'\n"+says+"X\ntrue\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return settings{cluster: path}
	}
	const pooled, direct = "pooled=postgres://l@127.0.0.1:1/l?default_query_exec_mode=cache_describe\n", "direct=postgres://l@127.0.0.1:2/l\n"
	d, err := script(pooled+direct+"nodes=postgres://l@127.0.0.1:3/l postgres://l@127.0.0.1:4/l\n").database(t.Context(), "dir")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"postgres://l@127.0.0.1:3/l", "postgres://l@127.0.0.1:4/l"}, d.cluster.nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	l, _ := echo(t)
	want := []string{"--database-url", "postgres://l@" + l.addr() + "/l?default_query_exec_mode=cache_describe",
		"--database-direct-url", "postgres://l@127.0.0.1:2/l", "--lease-ttl", "15s"}
	if diff := cmp.Diff(want, d.more(&replica{database: l})); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if _, err := script(pooled+direct).database(t.Context(), "dir"); err == nil || !strings.Contains(err.Error(), "nodes") {
		t.Errorf("without nodes: %v", err)
	}
	if _, err := (settings{cluster: "/nonexistent"}).database(t.Context(), "dir"); err == nil || !strings.Contains(err.Error(), "start the cluster first") {
		t.Errorf("without a script: %v", err)
	}
}

// TestTakeSoonWaitsItsTurn shows that what is planned neither skips a target that a
// fault works on, as faults do, nor waits for it for ever.
func TestTakeSoonWaitsItsTurn(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.log = slog.New(slog.DiscardHandler)
	b := &breaker{w: w, busy: map[string]bool{"replica-1": true}, done: map[string]int{}}
	ended, end := context.WithCancel(t.Context())
	end()
	if b.takeSoon(ended, "upgrade", "replica-1", func() { t.Error("it took a busy target") }) {
		t.Error("it says that it ran")
	}
	ran := make(chan bool)
	go func() { ran <- b.takeSoon(t.Context(), "upgrade", "replica-1", func() {}) }()
	b.mu.Lock()
	b.busy["replica-1"] = false
	b.mu.Unlock()
	if !<-ran || b.done["upgrade"] != 1 {
		t.Errorf("it did not run, or was not counted: %v", b.done)
	}
}

// TestReplicasBeginWithThePrevious shows which binary a replica starts with.
func TestReplicasBeginWithThePrevious(t *testing.T) {
	t.Parallel()
	if got := (settings{loopd: "new", previous: "old"}).first(); got != "old" {
		t.Errorf("an upgrade begins with %q", got)
	}
	if got := (settings{loopd: "new"}).first(); got != "new" {
		t.Errorf("without an upgrade it begins with %q", got)
	}
	if got := []string{nameOf(syscall.SIGKILL), nameOf(syscall.SIGTERM)}; !cmp.Equal(got, []string{"SIGKILL", "SIGTERM"}) {
		t.Errorf("signals are called %q", got)
	}
}
