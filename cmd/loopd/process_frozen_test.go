package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// signal sends a signal to all processes of the server.
func (m *mortal) signal(sig syscall.Signal) {
	m.t.Helper()
	files, err := filepath.Glob(m.dir + "/*/postmaster.pid")
	if err != nil || len(files) != 1 {
		m.t.Fatalf("the server's pid files are %v, error %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		m.t.Fatal(err)
	}
	parent, _, _ := strings.Cut(string(text), "\n")
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, stat := range all {
		text, _ := os.ReadFile(stat) // it may have ended meanwhile
		_, rest, _ := strings.Cut(string(text), ") ")
		pid := filepath.Base(filepath.Dir(stat))
		if words := strings.Fields(rest); pid != parent && (len(words) < 2 || words[1] != parent) {
			continue
		}
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, sig)
		}
	}
}

// Postgres accepts and does not answer: whoever says how long they wait hears of it then,
// though a statement is left to itself for 5 s more, and once Postgres answers again
// everything goes on.
func TestFrozenPostgres(t *testing.T) {
	t.Parallel()
	db := newMortal(t)
	p := start(t, db.url, callThenAnswer)
	var warm sync.WaitGroup
	for range 24 { // connections that are open, and hang
		warm.Go(func() { _, _ = p.runs.ListRuns(p.context, &loopdv1.ListRunsRequest{}) })
	}
	warm.Wait()
	db.signal(syscall.SIGSTOP)
	t.Cleanup(func() { db.signal(syscall.SIGCONT) })
	began := time.Now()
	inTime := func(who string, asked func(ctx context.Context) string) func() {
		return func() {
			ctx, cancel := context.WithTimeout(p.context, time.Second)
			defer cancel()
			fault := asked(ctx)
			// 2 s for /readyz, and room for a busy machine.
			if took := time.Since(began); fault != "" || took > 6*time.Second {
				t.Errorf("%s answered after %s: %s", who, took, fault)
			}
		}
	}

	var waits sync.WaitGroup
	waits.Go(inTime("/readyz", func(context.Context) string {
		return p.wants(p.admin, "/readyz", http.StatusServiceUnavailable, "not ready: database")
	}))
	waits.Go(inTime("REST", func(context.Context) string {
		return p.wants(p.http, "/v1/runs", http.StatusGatewayTimeout, "Grpc-Timeout")
	}))
	waits.Go(inTime("gRPC", func(ctx context.Context) string {
		if _, err := p.runs.ListRuns(ctx, &loopdv1.ListRunsRequest{}); status.Code(err) != codes.DeadlineExceeded {
			return fmt.Sprint(err)
		}
		return ""
	}))
	waits.Wait()

	db.signal(syscall.SIGCONT)
	if _, err := p.runs.ListRuns(p.context, &loopdv1.ListRunsRequest{}); err != nil {
		t.Errorf("when Postgres is back: %v", err)
	}
}

// wants asks over HTTP, with a deadline of a second, and says what is wrong with the answer.
func (p *process) wants(address, path string, code int, text string) (fault string) {
	req, err := http.NewRequestWithContext(p.context, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Grpc-Timeout", "1S")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != code || !strings.Contains(string(body), text) {
		return fmt.Sprintf("%d %s, error %v", resp.StatusCode, body, err)
	}
	return ""
}
