package pgtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// tempParent is not os.TempDir, which may be a directory that the user who runs
	// root's Postgres cannot enter.
	tempParent = "/tmp"
	tempPrefix = "loopd-pgtest-"
	// staleAge keeps the sweep away from a process that has made its directory and
	// not locked it yet.
	staleAge = time.Hour
)

// sweep removes the directories of test processes that were killed, or timed out,
// before they could: some 40 MB each. A living process holds the lock of its own.
// What cannot be removed is another user's, or being swept by another process.
func sweep(parent string, age time.Duration) {
	dirs, _ := filepath.Glob(filepath.Join(parent, tempPrefix+"*")) // the only error is a bad pattern
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > age && abandoned(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// abandoned reports whether nobody holds the lock that devpg takes on a
// directory. Another user's lock cannot be opened and counts as held.
func abandoned(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true // killed between the two
	}
	if err != nil {
		return false
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
