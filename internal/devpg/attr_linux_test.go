package devpg

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The kernel tells the server of loopd's death: it ends with no other loopd's help.
func TestServerFollowsKilledLoopd(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	child := startChild(t, dir)
	data := filepath.Join(dir, "data")
	if left, err := clusterProcesses(data); err != nil || len(left) < 2 {
		t.Fatalf("processes of a running server: %v, %v", left, err)
	}

	kill(t, child)

	eventually(t, "the server has ended", func() bool {
		left, err := clusterProcesses(data)
		return err == nil && len(left) == 0
	})
	mustStop(t, mustStart(t, dir)) // removes the child's socket directory
}

func TestIsStale(t *testing.T) {
	t.Parallel()
	if !isStale(os.Getpid(), "/no/cluster") {
		t.Error("a running program that is no postgres counts as a server")
	}
	if isStale(1<<30, "/no/cluster") {
		t.Error("a pid that nobody has is for Postgres to judge")
	}

	ended := exec.Command("true")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}
	defer ended.Wait()
	// Before it has ended it is stale as another program, so wait for the zombie.
	eventually(t, "true has ended", func() bool {
		_, err := os.Readlink(procFile(ended.Process.Pid, "exe"))
		return err != nil
	})
	eventually(t, "an ended process that nobody collected is stale", func() bool {
		return isStale(ended.Process.Pid, "/no/cluster")
	})
}

// eventually polls what no channel tells.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}
