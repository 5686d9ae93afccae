package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// childEnv turns this test binary into loopd: so the tests can kill real processes.
const childEnv = childVariable

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(pgtest.Main(m, postgres.Migrate))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], Env{Getenv: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Stdin: os.Stdin})
	stop()
	os.Exit(code)
}
