package devpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// owner is the user that runs Postgres and owns the cluster.
type owner struct {
	name     string
	uid, gid int
	dropped  bool // loopd is root and lends its child this user
}

// currentOwner is the user of this process, or for root the user that root drops
// to: Postgres refuses to run as root.
func currentOwner() (owner, error) {
	if uid := os.Geteuid(); uid != 0 {
		return owner{name: strconv.Itoa(uid), uid: uid, gid: os.Getegid()}, nil
	}
	return dropTo("postgres", "nobody")
}

// dropTo is the first of the named users that exists.
func dropTo(names ...string) (owner, error) {
	var errs []error
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, errU := strconv.Atoi(u.Uid)
		gid, errG := strconv.Atoi(u.Gid)
		if err := errors.Join(errU, errG); err != nil {
			return owner{}, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return owner{name: name, uid: uid, gid: gid, dropped: true}, nil
	}
	return owner{}, fmt.Errorf("find an unprivileged user to run Postgres, which refuses root: %w", errors.Join(errs...))
}

// prepare makes cmd run as the owner, apart from loopd's terminal and secrets.
// It gets the signal onDeath when the thread that starts it ends, where the
// system can do that.
func (o owner) prepare(cmd *exec.Cmd, bin binaries, onDeath syscall.Signal) {
	cmd.Dir = "/" // a child must be able to enter its working directory
	// Nothing of loopd's environment: it holds API keys, and PG* variables would
	// change the server. LC_ALL keeps macOS from starting threads in the server.
	cmd.Env = []string{"PATH=" + bin.dir + ":/usr/bin:/bin", "LC_ALL=C"}
	// Its own process group: Ctrl-C goes to loopd alone, which stops the server in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if o.dropped {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}
	}
	signalOnParentDeath(cmd.SysProcAttr, onDeath)
}

// checkReach refuses a path that a dropped user cannot get to, with the fix.
// The path must be absolute and free of links.
func (o owner) checkReach(path, fix string) error {
	if !o.dropped {
		return nil // what loopd can reach, its child can
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("check that user %s can reach %s: %w", o.name, path, err)
		}
		if !o.mayEnter(info) {
			return fmt.Errorf("user %s, who runs Postgres because it refuses root, may not enter %s (%v), "+
				"so %s is out of reach: %s", o.name, dir, info.Mode(), path, fix)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (o owner) mayEnter(info os.FileInfo) bool {
	mode, stat := info.Mode(), info.Sys().(*syscall.Stat_t) //nolint:errcheck // what os.Stat gives on every Unix
	switch {
	case int(stat.Uid) == o.uid:
		return mode&0o100 != 0
	case int(stat.Gid) == o.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
