package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// The benchmark runs to its end. What it measures here means nothing.
func TestBench(t *testing.T) {
	t.Parallel()
	args := []string{"bench", "--database-url", pgURL(t), "--concurrency", "1,3", "--repeat", "1", "--runs", "3", "--duration", "0", "--iterations", "3"}
	bench := func(more ...string) string {
		var out, progress bytes.Buffer
		env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &progress, Stdin: strings.NewReader("")}
		if code := run(t.Context(), append(args, more...), env); code != exitOK {
			t.Fatalf("exit code %d\n%s%s", code, &out, &progress)
		}
		return out.String()
	}

	lines := strings.Split(strings.TrimSpace(bench()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "AT ONCE") || !strings.HasPrefix(lines[2], "3 ") {
		t.Errorf("the table is\n%s", strings.Join(lines, "\n"))
	}

	var rows []benchCell
	if err := json.Unmarshal([]byte(bench("--json")), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		// 3 runs of 3 iterations have 6 gaps and 3 starts, and some rows each.
		if r.Runs != 3 || r.IterationsPerSecond <= 0 || r.OverheadP50 <= 0 || r.StartP50 <= 0 || r.CreateP50 <= 0 || r.RowsPerIteration < 1 || r.WALPerRun < 1000 || r.Objects < 100 || r.Bytes < 1000 {
			t.Errorf("a row is %+v", r)
		}
	}
}

func TestBenchRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--concurrency", "0"}, {"--repeat", "0"}, {"--duration", "0"}, {"--runs", "-1"}, {"--iterations", "1"}, {"--model-url", "http://127.0.0.1:1/v1"},
	} {
		code, _, stderr := command(t, nil, append([]string{"bench"}, args...)...)
		if code != exitUsage || !strings.Contains(stderr, args[0]) {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}
