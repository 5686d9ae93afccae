package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// benchProcess runs a benchmark in a process of its own, as it starts replicas that are the
// same program. It returns the rows of its table.
func benchProcess(t *testing.T, args ...string) (rows []string, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	var progress strings.Builder
	cmd.Stderr = &progress
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("bench %v: %v\n%s%s", args, err, text, &progress)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), string(text)
}

// noWorkers checks that all replicas have ended in good order.
func noWorkers(t *testing.T, url string) {
	t.Helper()
	var workers int
	if err := connect(t, url).QueryRow(t.Context(), "SELECT count(*) FROM workers").Scan(&workers); err != nil || workers != 0 {
		t.Errorf("%d workers are left, %v", workers, err)
	}
}

// The benchmark of replicas runs to its end. What it measures here means nothing.
func TestBenchReplicas(t *testing.T) {
	t.Parallel()
	url := pgURL(t)
	rows, out := benchProcess(t, "replicas", "--database-url", url, "--replicas", "1,2", "--concurrency", "2", "--runs", "4", "--duration", "0", "--iterations", "2")
	if len(rows) != 3 || !strings.HasPrefix(rows[1], "1 ") || !strings.HasPrefix(rows[2], "2 ") || !strings.Contains(rows[2], " + ") {
		t.Errorf("the table is\n%s", out)
	}
	noWorkers(t, url)
}

// Runs wait for the model all at once, and end.
func TestBenchFlight(t *testing.T) {
	t.Parallel()
	url := pgURL(t)
	rows, out := benchProcess(t, "flight", "--database-url", url, "--runs", "5", "--iterations", "2")
	if len(rows) < 5 || !strings.HasPrefix(rows[2], "5 ") || !strings.Contains(out, "25 runs claimed") || !strings.Contains(out, "0 leases lost") {
		t.Errorf("the report is\n%s", out)
	}
	noWorkers(t, url)
}

func TestBenchReplicasRefuseNonsense(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"replicas", "--replicas", "0"}, {"replicas", "--concurrency", "0"}, {"replicas", "--iterations", "20"}, {"replicas", "--cores", "-1"},
		{"replicas", "--runs", "-1"}, {"flight", "--runs", "0"}, {"flight", "--iterations", "0"},
	} {
		code, _, stderr := command(t, nil, append([]string{"bench"}, args...)...)
		if code != exitUsage || !strings.Contains(stderr, args[1]) {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}
