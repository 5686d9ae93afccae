package loop_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected lines of testdata/scenarios, and write golden journals that are missing")

// TestMain raises rapid's default of 100 checks: bugs of a state machine hide in
// rare histories. -rapid.checks and -short still decide.
func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if !set {
		checks := 20_000
		if testing.Short() {
			checks = 2_000
		}
		if err := flag.Set("rapid.checks", fmt.Sprint(checks)); err != nil {
			fmt.Fprintln(os.Stderr, "set -rapid.checks:", err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
