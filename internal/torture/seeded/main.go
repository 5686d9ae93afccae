// Seeded breaks loopd in fifteen ways, one after the other, and shows that the tests
// notice: a test suite that has never failed proves nothing.
//
// A bug is a patch, beside this file. It is applied to copies of the sources, and
// reaches the compiler through go's -overlay: there is no code for it in loopd, so
// that no build of a release can hold it, which a build tag could not promise.
//
//	go run ./internal/torture/seeded                 # all, by the test that is quickest to notice
//	go run ./internal/torture/seeded --machine M03   # one, by the fault machine
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// patience is how long a bug may take to be noticed, once it is built.
const patience = 10 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 every bug was caught, 1 one was not, 2 it could not be
// tried. It must be called in the module's root.
func run(ctx context.Context, args []string, out io.Writer) int {
	f := flag.NewFlagSet("seeded", flag.ContinueOnError)
	f.SetOutput(out)
	machine := f.Bool("machine", false, "let the fault machine find the bugs, instead of the quickest test")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	chosen, err := choose(f.Args())
	if err == nil {
		var missed int
		if missed, err = tryAll(ctx, chosen, *machine, out); err == nil {
			return min(missed, 1)
		}
	}
	fmt.Fprintln(out, "seeded:", err)
	return 2
}

// choose keeps the bugs that are named; no name is all.
func choose(ids []string) ([]bug, error) {
	all, err := bugs()
	if err != nil || len(ids) == 0 {
		return all, err
	}
	var chosen []bug
	for _, id := range ids {
		i := slices.IndexFunc(all, func(b bug) bool { return b.id == id })
		if i < 0 {
			return nil, fmt.Errorf("there is no bug %q; they are M01 to M%02d", id, len(all))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// tryAll prints a row for each bug and counts those that nobody noticed.
func tryAll(ctx context.Context, all []bug, machine bool, out io.Writer) (missed int, err error) {
	fmt.Fprint(out, "| | bug | caught by | after |\n|---|---|---|---|\n")
	for _, b := range all {
		if machine && b.hidden != "" {
			fmt.Fprintf(out, "| %s | %s | - (%s) | |\n", b.id, b.says, b.hidden)
			continue
		}
		began := time.Now()
		by, err := b.try(ctx, machine)
		if err != nil {
			return missed, fmt.Errorf("%s: %w", b.id, err)
		}
		if by == "" {
			missed++
			by = "**nobody**"
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", b.id, b.says, by, time.Since(began).Round(time.Second))
	}
	return missed, nil
}

// try builds a broken loopd and returns who noticed, "" for nobody.
func (b bug) try(ctx context.Context, machine bool) (string, error) {
	dir, err := os.MkdirTemp("", "loopd-seeded-")
	if err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()     // a leftover harms nobody
	if err := os.Chmod(dir, 0o755); err != nil { // the machine's Postgres is of another user
		return "", fmt.Errorf("open the directory: %w", err)
	}
	overlay, err := b.overlay(dir)
	if err != nil {
		return "", err
	}
	if machine {
		return b.byMachine(ctx, dir, overlay)
	}
	return b.byTest(ctx, overlay)
}
