package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultDataDir is /var/lib/loopd for root, whose home the user that runs
// Postgres may not enter, and loopd in the user's data directory (XDG) for
// everyone else. It is empty if the environment names no home.
func DefaultDataDir(euid int, getenv func(string) string) string {
	if euid == 0 {
		return "/var/lib/loopd"
	}
	// The XDG specification says to ignore a relative path.
	if data := getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "loopd")
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "share", "loopd")
	}
	return ""
}

// directory is a data directory that this process has locked. Root keeps the
// directory itself, so that the user it drops to cannot plant links in it; only
// the cluster belongs to that user.
type directory struct {
	path  string // absolute, without links: Postgres must get to it by itself
	owner owner
	lock  *os.File
}

func (d *directory) data() string       { return filepath.Join(d.path, "data") }
func (d *directory) unfinished() string { return filepath.Join(d.path, "data.init") }
func (d *directory) logFile() string    { return filepath.Join(d.path, "postgres.log") }
func (d *directory) urlFile() string    { return filepath.Join(d.path, "url") }

// openDirectory makes path if it is absent, and locks it.
func openDirectory(path string, own owner) (*directory, error) {
	if path == "" {
		return nil, errors.New("the data directory of Postgres is not set: set it, or set HOME")
	}
	path, err := makeDirectory(path, own)
	if err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	if err := own.checkReach(path, "choose a data directory elsewhere, such as /var/lib/loopd"); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(path, "lock"))
	if err != nil {
		return nil, err
	}
	return &directory{path: path, owner: own, lock: lock}, nil
}

// makeDirectory returns the real path of the directory. A directory that exists
// keeps its mode.
func makeDirectory(path string, own owner) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	mode := fs.FileMode(0o700)
	if own.dropped {
		mode = 0o711 // the dropped user passes through to its cluster
	}
	if err := os.MkdirAll(filepath.Dir(path), mode); err != nil {
		return "", err
	}
	switch err := os.Mkdir(path, mode); {
	case err == nil:
		if err := os.Chmod(path, mode); err != nil { // whatever the umask took away
			return "", err
		}
	case !errors.Is(err, fs.ErrExist):
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// lockFile takes the lock, which the kernel releases when this process ends,
// however it ends. The file holds the pid for the message to the next one.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		pid, _ := io.ReadAll(io.LimitReader(file, 20)) // only for the message
		file.Close()
		return nil, fmt.Errorf("%w: process %s runs a Postgres on %s; stop it, or choose another data directory",
			ErrLocked, pid, filepath.Dir(path))
	case err != nil:
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	pid := strconv.Itoa(os.Getpid())
	if err := errors.Join(file.Truncate(0), writeAt(file, pid)); err != nil {
		file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return file, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// close gives the directory up. The lock file stays: removing it would let two
// processes lock two files of the same name.
//
// The lock is undone and not only closed: a child that another goroutine forks just
// now has the file too, until it executes its program.
func (d *directory) close() error {
	err := errors.Join(syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
	if err != nil {
		return fmt.Errorf("release the data directory: %w", err)
	}
	return nil
}

// major is the major version that made the cluster, 0 if there is none.
func (d *directory) major() (int, error) {
	file := filepath.Join(d.data(), "PG_VERSION")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data: %w", err)
	}
	// "15", or "9.6" for the old ones.
	digits, _, _ := strings.Cut(strings.TrimSpace(string(text)), ".")
	major, err := strconv.Atoi(digits)
	if err != nil || major < 1 {
		return 0, fmt.Errorf("%w: %s says %q, which is no version; restore it, or choose another data directory",
			ErrVersion, file, text)
	}
	return major, nil
}

// initialise makes the cluster, if there is none. It is made under another name
// and then renamed, so that a killed initdb leaves no half-made cluster behind.
func (d *directory) initialise(ctx context.Context, bin binaries, sync bool) error {
	if err := os.RemoveAll(d.unfinished()); err != nil {
		return fmt.Errorf("remove the half-made cluster: %w", err)
	}
	if major, err := d.major(); err != nil || major != 0 {
		return err
	}
	if err := os.Mkdir(d.unfinished(), 0o700); err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	if err := os.Chown(d.unfinished(), d.owner.uid, d.owner.gid); err != nil {
		return fmt.Errorf("hand the cluster over to user %s: %w", d.owner.name, err)
	}
	if err := d.initdb(ctx, bin, sync); err != nil {
		return err
	}
	if err := os.Rename(d.unfinished(), d.data()); err != nil {
		return fmt.Errorf("put the new cluster in place: %w", err)
	}
	return nil
}

func (d *directory) initdb(ctx context.Context, bin binaries, sync bool) error {
	// The death signal follows the thread that forks: keep this one until initdb has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	args := []string{"-D", d.unfinished(), "-U", superuser, "--encoding=UTF8", "--locale=" + locale,
		"--auth-local=trust", "--auth-host=reject"} // the socket's mode is the guard
	if !sync {
		args = append(args, "--no-sync")
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, bin.path("initdb"), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Not SIGINT: initdb would then clean up, perhaps under the feet of the next loopd.
	d.owner.prepare(cmd, bin, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children, too
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("make the cluster with %s: %w; it said: %s", bin.path("initdb"), err, tail(out.Bytes()))
	}
	return nil
}

// writeURL publishes the connection string, in one move so that nobody reads half.
func (d *directory) writeURL(url string) error {
	file, err := os.CreateTemp(d.path, "url-") // mode 0600
	if err != nil {
		return fmt.Errorf("write the connection string: %w", err)
	}
	_, err = file.WriteString(url + "\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the connection string: %w", err), os.Remove(file.Name()))
	}
	if err := os.Rename(file.Name(), d.urlFile()); err != nil {
		return errors.Join(fmt.Errorf("publish the connection string: %w", err), os.Remove(file.Name()))
	}
	return nil
}

func (d *directory) removeURL() error {
	if err := os.Remove(d.urlFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the connection string: %w", err)
	}
	return nil
}

// lastWords is the end of the server's log, for an error message.
func (d *directory) lastWords() string {
	log, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	return tail(log)
}

// tail is the last lines of a program's output, on one line.
func tail(out []byte) string {
	const lines = 4 // enough for an error, its detail and its hint
	all := regexp.MustCompile(`\s*\n\s*`).Split(string(bytes.TrimSpace(out)), -1)
	return strings.Join(all[max(0, len(all)-lines):], " | ")
}
