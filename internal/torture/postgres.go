package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/loopd/loopd/internal/devpg"
)

// database is a Postgres that can be made to crash. Without fsync, since the machine
// itself stays up: what a process has written outlives it.
type database struct {
	dir     string
	cluster *cluster // nil: the machine's own Postgres

	mu     sync.Mutex
	server *devpg.Server
}

func startDatabase(ctx context.Context, dir string) (*database, error) {
	d := &database{dir: dir}
	return d, d.start(ctx)
}

func (d *database) start(ctx context.Context) error {
	server, err := devpg.Start(ctx, devpg.Config{DataDir: d.dir, Settings: map[string]string{
		"fsync": "off", "max_connections": "200", "shared_buffers": "64MB",
	}})
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server = server
	return nil
}

// restart waits for what a crash left running, as an init system would by trying again.
func (d *database) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := d.start(ctx)
		if err == nil || !pause(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// dial connects to wherever the server is now.
func (d *database) dial() (net.Conn, error) {
	if d.cluster != nil {
		return d.cluster.dial(d.cluster.direct)
	}
	d.mu.Lock()
	server := d.server
	d.mu.Unlock()
	if server == nil {
		return nil, errors.New("postgres is down")
	}
	u, err := url.Parse(server.URL())
	if err != nil {
		return nil, err
	}
	return (&net.Dialer{Timeout: time.Second}).Dial("unix", filepath.Join(u.Query().Get("host"), ".s.PGSQL."+u.Query().Get("port")))
}

// crash ends the server with a signal, SIGQUIT (immediate shutdown) or SIGKILL, and
// starts it again after a while.
func (d *database) crash(ctx context.Context, sig syscall.Signal, away time.Duration) error {
	d.mu.Lock()
	server := d.server
	d.server = nil
	d.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(d.dir, "data", "postmaster.pid"))
	if err != nil {
		return fmt.Errorf("find postgres: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return fmt.Errorf("find postgres: %w", err)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("crash postgres: %w", err)
	}
	<-server.Done()
	_ = server.Stop(ctx) // gives the directory back; that it ended badly is the point
	pause(ctx, away)
	return d.restart(context.WithoutCancel(ctx))
}

func (d *database) stop(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil {
		_ = d.server.Stop(ctx)
	}
}
