//go:build !linux

package devpg

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// locale is the one that every system has; macOS knows C.UTF-8 only of late.
const locale = "C"

// signalOnParentDeath does nothing: only Linux can. The next start reaps.
func signalOnParentDeath(*syscall.SysProcAttr, syscall.Signal) {}

// clusterProcesses lists the server that runs on the cluster. Children that
// outlived it cannot be told apart here; Postgres itself refuses to start beside
// them.
func clusterProcesses(cluster string) ([]int, error) {
	out, err := exec.Command("ps", "-axo", "pid=,args=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for line := range strings.Lines(string(out)) {
		number, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		if pid, err := strconv.Atoi(number); err == nil && isServer(args, cluster) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// runsIn reports whether the process is the server of the cluster.
func runsIn(pid int, cluster string) bool {
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && isServer(string(out), cluster)
}

func isServer(args, cluster string) bool {
	return strings.Contains(args, "/postgres -D "+cluster+" ")
}

// isStale is never sure here; Postgres decides.
func isStale(int, string) bool { return false }
