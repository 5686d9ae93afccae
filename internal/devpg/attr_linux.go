package devpg

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// locale sorts by code point, knows all of Unicode's letters, and is part of
// every current libc.
const locale = "C.UTF-8"

// signalOnParentDeath makes the kernel send sig to the child when the thread that
// forks it ends.
func signalOnParentDeath(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// clusterProcesses lists the Postgres processes that run in the cluster: the
// server and its children, or children that outlived their server.
func clusterProcesses(cluster string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && runsIn(pid, cluster) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// runsIn reports whether the process is a Postgres of the cluster: its program is
// postgres, and it has entered the cluster, as all of a server's processes do.
func runsIn(pid int, cluster string) bool {
	exe, err := os.Readlink(procFile(pid, "exe"))
	if errors.Is(err, fs.ErrPermission) {
		// Root in a container without CAP_SYS_PTRACE. The command line is open to
		// all, and a server of ours is recognisable by it.
		cmdline, _ := os.ReadFile(procFile(pid, "cmdline"))
		return bytes.Contains(cmdline, []byte("/postgres\x00-D\x00"+cluster+"\x00"))
	}
	if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != "postgres" {
		return false // gone, or another program
	}
	cwd, err := os.Readlink(procFile(pid, "cwd"))
	return err == nil && cwd == cluster
}

// isStale reports whether the process is surely no server of the cluster: it is
// another program, or it has ended and only waits to be collected by its parent,
// which an init that does not do so may put off for ever.
func isStale(pid int, cluster string) bool {
	if _, err := os.Readlink(procFile(pid, "exe")); err == nil {
		return !runsIn(pid, cluster)
	}
	// "123 (name) Z ...": the name may hold anything, parentheses too.
	stat, err := os.ReadFile(procFile(pid, "stat"))
	return err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z "))
}

func procFile(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
