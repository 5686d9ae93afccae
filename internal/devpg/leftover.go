package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// reapPoll is how often leftover processes are looked for until they are gone.
	reapPoll = 50 * time.Millisecond
	// quitGrace is how long after SIGQUIT a server may live. It kills its own
	// children after 5 s.
	quitGrace = 10 * time.Second
)

// reapLeftovers ends what a killed loopd left running in the directory. The lock
// is held, so no living loopd owns it.
func (d *directory) reapLeftovers(ctx context.Context, log *slog.Logger) error {
	for _, cluster := range []string{d.data(), d.unfinished()} {
		if err := reap(ctx, cluster, log); err != nil {
			return fmt.Errorf("end the Postgres that a killed loopd left in %s: %w", cluster, err)
		}
	}
	return dropStalePID(d.data())
}

// reap waits until no process runs in the cluster. The server is told to shut
// down at first (as the kernel told it already, where it can); whoever is still
// there after stopGrace has to quit at once.
func reap(ctx context.Context, cluster string, log *slog.Logger) error {
	left, err := clusterProcesses(cluster)
	if err != nil || len(left) == 0 {
		return err
	}
	log.WarnContext(ctx, "ending the postgres of a killed loopd", "data", cluster, "pids", left)
	if pid := postmaster(cluster); slices.Contains(left, pid) {
		signalIn(cluster, pid, syscall.SIGINT)
	}
	tick := time.NewTicker(reapPoll)
	defer tick.Stop()
	begin, quit := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		left, err = clusterProcesses(cluster)
		switch waited := time.Since(begin); {
		case err != nil || len(left) == 0:
			return err
		case waited > stopGrace+quitGrace:
			return fmt.Errorf("still running after %v: processes %v", waited.Round(time.Second), left)
		case waited > stopGrace && !quit:
			quit = true
			for _, pid := range left {
				signalIn(cluster, pid, syscall.SIGQUIT)
			}
		}
	}
}

// signalIn signals the process if it is a Postgres of the cluster. The handle is
// taken before the check, so that a reused pid cannot slip in between.
func signalIn(cluster string, pid int, sig os.Signal) {
	process, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer process.Release()
	if runsIn(pid, cluster) {
		_ = process.Signal(sig) // it may have ended just now, which is what we want
	}
}

// postmaster is the pid that the cluster's server wrote down, 0 if there is none.
func postmaster(cluster string) int {
	text, err := os.ReadFile(pidFile(cluster))
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

// dropStalePID removes a pid file whose pid has passed to another program, as
// happens after a power cut: Postgres would take that for a running server and
// refuse to start for as long as the program lives. Everything less clear is left
// to the checks of Postgres itself.
func dropStalePID(cluster string) error {
	pid := postmaster(cluster)
	if pid == 0 || !isStale(pid, cluster) {
		return nil
	}
	if err := os.Remove(pidFile(cluster)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the stale pid file: %w", err)
	}
	return nil
}

// dropStaleSocket removes the socket directory that a killed loopd published and
// left behind, and the connection string with it. Only a path that makeSocketDir
// could have made is removed.
func (d *directory) dropStaleSocket() error {
	text, err := os.ReadFile(d.urlFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the connection string of a killed loopd: %w", err)
	}
	if u, err := url.Parse(strings.TrimSpace(string(text))); err == nil {
		socket := filepath.Clean(u.Query().Get("host"))
		if filepath.Dir(socket) == socketParent && strings.HasPrefix(filepath.Base(socket), socketPrefix) {
			if err := os.RemoveAll(socket); err != nil {
				return fmt.Errorf("remove the socket of a killed loopd: %w", err)
			}
		}
	}
	return d.removeURL()
}

func pidFile(cluster string) string { return filepath.Join(cluster, "postmaster.pid") }
