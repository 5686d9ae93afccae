package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// failed finds the names of tests that failed, and violation what the fault machine
// found.
var (
	failed    = regexp.MustCompile(`--- FAIL: (\S+)`)
	violation = regexp.MustCompile(`(?m)^VIOLATION ([^:\[\n]+)`)
)

// byTest runs the tests of a bug. Only a test that fails has noticed: a patch that does
// not compile, and a test that hangs, have not.
func (b bug) byTest(ctx context.Context, overlay string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience) // it compiles first
	defer cancel()
	said, code, err := command(ctx, "go", "test", "-overlay", overlay, "-count=1", "-failfast", "-timeout", patience.String(), "-run", b.test.name, "./"+b.test.folder)
	names := failed.FindAllStringSubmatch(said, -1)
	// The name of the innermost test says most.
	slices.SortStableFunc(names, func(a, b []string) int { return cmp.Compare(strings.Count(b[1], "/"), strings.Count(a[1], "/")) })
	switch {
	case err != nil:
		return "", err
	case code == 0:
		return "", nil
	case len(names) == 0:
		return "", fmt.Errorf("no test failed, but go test ended with code %d: %s", code, last(said))
	}
	return names[0][1] + " in " + b.test.folder, nil
}

// byMachine breaks the broken loopd some more.
func (b bug) byMachine(ctx context.Context, dir, overlay string) (string, error) {
	for _, folder := range []string{"./cmd/loopd", "./internal/torture"} {
		if said, code, err := command(ctx, "go", "build", "-overlay", overlay, "-o", dir+"/", folder); err != nil || code != 0 {
			return "", fmt.Errorf("build %s: %w %s", folder, err, last(said))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said, code, err := command(ctx, filepath.Join(dir, "torture"), "--loopd", filepath.Join(dir, "loopd"), "--dir", filepath.Join(dir, "machine"),
		"--faults", b.faults, "--duration", "30s", "--quiet", "90s")
	found := violation.FindAllStringSubmatch(said, -1)
	// That something is late says least of what is wrong.
	slices.SortStableFunc(found, func(a, b []string) int { return cmp.Compare(liveness(a[1]), liveness(b[1])) })
	switch {
	case err != nil:
		return "", err
	case code == 0:
		return "", nil
	case len(found) == 0:
		return "", fmt.Errorf("no violation, but the machine ended with code %d: %s", code, last(said))
	}
	return strings.TrimSpace(found[0][1]), nil
}

// liveness is 1 for a violation that says only that something took too long.
func liveness(violation string) int {
	if strings.HasPrefix(violation, "I16") {
		return 1
	}
	return 0
}

// command runs a program and returns all that it said.
func command(ctx context.Context, name string, args ...string) (said string, code int, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has children of its own
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return string(out), exit.ExitCode(), nil
	}
	if err != nil {
		return string(out), 0, fmt.Errorf("run %s: %w", name, errors.Join(err, ctx.Err()))
	}
	return string(out), 0, nil
}

// last is the end of what a program said.
func last(said string) string { return said[max(0, len(said)-2000):] }
