package devpg

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// binaries is a directory that holds initdb and postgres of one version.
type binaries struct {
	dir     string
	version string // such as 15.18
	major   int
}

// path names one of the programs.
func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// findBinaries chooses the programs to run dir with: those in binDir if it is
// given, else the newest installed ones of the data's major version.
func findBinaries(ctx context.Context, binDir string, dir *directory) (binaries, error) {
	places := []string{binDir}
	if binDir == "" {
		places = installed()
	}
	var found []binaries
	for _, place := range places {
		if bin, ok := inspect(ctx, place); ok {
			found = append(found, bin)
		}
	}
	if ctx.Err() != nil { // then nothing was found because nothing could be asked
		return binaries{}, fmt.Errorf("look for Postgres server programs: %w", context.Cause(ctx))
	}
	if len(found) == 0 {
		return binaries{}, noBinaries(binDir)
	}
	major, err := dir.major()
	if err != nil {
		return binaries{}, err
	}
	bin, err := newest(found, major, dir.data())
	if err != nil {
		return binaries{}, err
	}
	return bin, dir.owner.checkReach(bin.dir, "use programs in a directory open to all")
}

// installed lists where the packages of Debian, the PostgreSQL project (RPM) and
// Homebrew put the server programs, then the one on PATH (Fedora, Arch).
func installed() []string {
	var places []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	} {
		matches, _ := filepath.Glob(pattern) // the only error is a bad pattern
		places = append(places, matches...)
	}
	if program, err := exec.LookPath("postgres"); err == nil {
		places = append(places, filepath.Dir(program))
	}
	return places
}

// inspect asks the programs in place for their version; a place without both
// programs, or with ones that do not run, is none.
func inspect(ctx context.Context, place string) (binaries, bool) {
	place, err := filepath.Abs(place)
	if err != nil {
		return binaries{}, false
	}
	bin := binaries{dir: place}
	if _, err := os.Stat(bin.path("initdb")); err != nil {
		return binaries{}, false
	}
	out, err := exec.CommandContext(ctx, bin.path("postgres"), "--version").Output()
	if err != nil {
		return binaries{}, false
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-1)", or "... 19beta1".
	match := regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`).FindSubmatch(out)
	if match == nil {
		return binaries{}, false
	}
	bin.version = string(match[1])
	bin.major, err = strconv.Atoi(string(match[2]))
	return bin, err == nil
}

// newest returns the newest of found that can open data of the given major
// version; 0 means that there is no data yet.
func newest(found []binaries, major int, data string) (binaries, error) {
	slices.SortStableFunc(found, func(a, b binaries) int { return cmp.Compare(b.major, a.major) })
	if major == 0 {
		return found[0], nil
	}
	var have []string
	for _, bin := range found {
		if bin.major == major {
			return bin, nil
		}
		have = append(have, fmt.Sprintf("Postgres %s in %s", bin.version, bin.dir))
	}
	return binaries{}, fmt.Errorf("%w: %s was made by Postgres %d, but there is only %s; "+
		"install Postgres %d, or move the data with pg_upgrade, or choose another data directory",
		ErrVersion, data, major, strings.Join(have, ", "), major)
}

func noBinaries(binDir string) error {
	where := ""
	if binDir != "" {
		where = " in " + binDir
	}
	return fmt.Errorf("%w%s: install Postgres (Debian, Ubuntu: apt install postgresql; "+
		"Fedora: dnf install postgresql-server; macOS: brew install postgresql@18), "+
		"or set LOOPD_PG_BINDIR to the directory that holds initdb and postgres, "+
		"or set LOOPD_DATABASE_URL to a server of your own", ErrNoBinaries, where)
}
