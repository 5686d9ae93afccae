package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/devpg"
)

// world is a database, replicas of loopd, the tools of their agents, and who watches.
type world struct {
	dir, loopd string
	postgres   *devpg.Server
	tools      *toolServer
	toolURL    string
	extra      *exporter
	replicas   []*replica
	watch      *watch
	servers    []*http.Server
	all        group // of the servers
}

// leaseTTL is short, so that takeovers are soon.
const leaseTTL = 3 * time.Second

// newWorld starts all but the watchers. What it returns is to be closed, with an error
// too.
func newWorld(ctx context.Context, s settings) (*world, error) {
	w := &world{dir: s.dir, loopd: s.loopd, tools: newToolServer(), extra: newExporter()}
	if err := os.WriteFile(w.file("script.yaml"), script(), 0o600); err != nil {
		return w, fmt.Errorf("write the script: %w", err)
	}
	var err error
	if w.toolURL, err = w.serve(ctx, w.tools); err != nil {
		return w, err
	}
	if w.extra.addr, err = w.serve(ctx, w.extra); err != nil {
		return w, err
	}
	if err := w.startPostgres(ctx); err != nil {
		return w, err
	}
	migrate := exec.CommandContext(ctx, s.loopd, "migrate", "up", "--database-url", w.postgres.URL())
	if out, err := migrate.CombinedOutput(); err != nil {
		return w, fmt.Errorf("migrate: %w: %s", err, out)
	}
	for _, name := range []string{"a", "b"} {
		r, err := w.newReplica(ctx, name)
		if err != nil {
			return w, err
		}
		w.replicas = append(w.replicas, r)
		if err := r.start(ctx, "--max-runs", "24"); err != nil {
			return w, err
		}
	}
	return w, w.define(ctx)
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) startPostgres(ctx context.Context) (err error) {
	w.postgres, err = devpg.Start(ctx, devpg.Config{DataDir: w.file("postgres"), Settings: map[string]string{"fsync": "off", "max_connections": "100"}})
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	return nil
}

// connect opens a connection to the database.
func (w *world) connect(ctx context.Context) (*pgx.Conn, error) {
	db, err := pgx.Connect(ctx, w.postgres.URL())
	if err != nil {
		return nil, fmt.Errorf("connect to postgres: %w", err)
	}
	return db, nil
}

// serve serves a handler until the world is closed.
func (w *world) serve(ctx context.Context, h http.Handler) (string, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	w.servers = append(w.servers, server)
	w.all.do(func() { _ = server.Serve(lis) })
	return lis.Addr().String(), nil
}

// close ends everything.
func (w *world) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if w.watch != nil {
		w.watch.close()
	}
	for _, r := range w.replicas {
		r.process.kill()
		errs = append(errs, r.conn.Close())
	}
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	w.all.wait()
	if w.postgres != nil {
		errs = append(errs, w.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}

// replica is one loopd, and the clients of it.
type replica struct {
	w                 *world
	name              string
	http, grpc, admin string // addresses, the same after each start
	process           process
	conn              *grpc.ClientConn
	runs              loopdv1.RunServiceClient
}

func (w *world) newReplica(ctx context.Context, name string) (*replica, error) {
	r := &replica{w: w, name: name}
	for _, addr := range []*string{&r.http, &r.grpc, &r.admin} {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		*addr = port
	}
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	r.conn, r.runs = conn, loopdv1.NewRunServiceClient(conn)
	return r, nil
}

// start starts the process, and waits until it is ready.
func (r *replica) start(ctx context.Context, more ...string) error {
	args := append([]string{
		"serve", "--database-url", r.w.postgres.URL(), "--script", r.w.file("script.yaml"), "--allow-private-tools", "--metric-tenants", "default",
		"--lease-ttl", leaseTTL.String(), "--drain-grace", "15s", "--log-level", "warn", "--http-addr", r.http, "--grpc-addr", r.grpc, "--admin-addr", r.admin,
	}, more...)
	if err := r.process.start(r.w.file("loopd-"+r.name+".log"), r.w.loopd, args...); err != nil {
		return err
	}
	return until(ctx, "loopd "+r.name+" is ready", time.Minute, func() bool { return answers(ctx, "http://"+r.admin+"/readyz") })
}

// answers reports whether a page is there.
func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// freePort finds one that nobody listens on now.
func freePort(ctx context.Context) (string, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	defer lis.Close()
	return lis.Addr().String(), nil
}

// process is a program that is watched, killed and started again.
type process struct {
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has ended
	watch group
}

func (p *process) start(log, name string, args ...string) error {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open a log: %w", err)
	}
	p.cmd = exec.Command(name, args...) // it ends by signal
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		_ = out.Close()
		return fmt.Errorf("start %s: %w", name, err)
	}
	cmd, done := p.cmd, make(chan struct{})
	p.done = done
	p.watch.do(func() {
		defer close(done)
		_ = cmd.Wait()
		_ = out.Close()
	})
	return nil
}

func (p *process) signal(s os.Signal) {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	p.signal(os.Kill)
	<-p.done
	p.cmd = nil
}
