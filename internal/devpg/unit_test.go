package devpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		euid int
		env  map[string]string
		want string
	}{
		"root":         {0, map[string]string{"HOME": "/root"}, "/var/lib/loopd"},
		"home":         {1000, map[string]string{"HOME": "/home/ann"}, "/home/ann/.local/share/loopd"},
		"xdg":          {1000, map[string]string{"HOME": "/home/ann", "XDG_DATA_HOME": "/data/ann"}, "/data/ann/loopd"},
		"relative xdg": {1000, map[string]string{"HOME": "/home/ann", "XDG_DATA_HOME": "data"}, "/home/ann/.local/share/loopd"},
		"nothing":      {1000, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := DefaultDataDir(test.euid, func(key string) string { return test.env[key] }); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestStartWithoutDataDir(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "set HOME") {
		t.Errorf("Start: %v", err)
	}
}

func TestNewestThatFits(t *testing.T) {
	t.Parallel()
	found := func() []binaries {
		return []binaries{{"/a", "9.6.24", 9}, {"/b", "15.18", 15}, {"/c", "18.4", 18}, {"/d", "15.2", 15}}
	}
	for name, test := range map[string]struct {
		major int
		want  string
	}{
		"no data":             {0, "/c"},
		"data of 15, first":   {15, "/b"},
		"data of the oldest":  {9, "/a"},
		"data of none of all": {17, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newest(found(), test.major, "/x/data")
			if got.dir != test.want || errors.Is(err, ErrVersion) != (test.want == "") {
				t.Errorf("got %q, %v; want %q", got.dir, err, test.want)
			}
		})
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("postgres", "echo 'postgres (PostgreSQL) 19beta1 (Debian 19~beta1-1)'")
	if _, ok := inspect(t.Context(), dir); ok {
		t.Error("a directory without initdb was taken")
	}
	script("initdb", "")
	got, ok := inspect(t.Context(), dir)
	want := binaries{dir: dir, version: "19beta1", major: 19}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(binaries{})); !ok || diff != "" {
		t.Errorf("ok = %v (-want +got):\n%s", ok, diff)
	}
}

// Root's own home is the classic: the user that root drops to cannot get in.
func TestCheckReach(t *testing.T) {
	t.Parallel()
	base := must(filepath.EvalSymlinks(filepath.Dir(tempDir(t))))
	closed := filepath.Join(base, "closed")
	inside := filepath.Join(closed, "loopd")
	for path, mode := range map[string]os.FileMode{closed: 0o700, inside: 0o711} {
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	stranger := owner{name: "stranger", uid: 54321, gid: 54321, dropped: true}

	if err := stranger.checkReach(base, "fix"); err != nil {
		t.Errorf("a path open to all: %v", err)
	}
	err := stranger.checkReach(inside, "choose another")
	if err == nil || !strings.Contains(err.Error(), "user stranger") ||
		!strings.Contains(err.Error(), "may not enter "+closed+" (drwx------)") ||
		!strings.Contains(err.Error(), "choose another") {
		t.Errorf("a closed path: %v", err)
	}
	if _, err := start(t.Context(), Config{DataDir: inside}, stranger); err == nil || !strings.Contains(err.Error(), "/var/lib/loopd") {
		t.Errorf("start in a closed path: %v", err)
	}
	self := owner{name: "self", uid: os.Geteuid(), gid: os.Getegid(), dropped: true}
	if err := self.checkReach(inside, "fix"); err != nil {
		t.Errorf("the owner's own path: %v", err)
	}
}

func TestDropTo(t *testing.T) {
	t.Parallel()
	got, err := dropTo("no-such-user", "nobody")
	if err != nil || got.name != "nobody" || got.uid == 0 || !got.dropped {
		t.Errorf("dropTo = %+v, %v; want nobody", got, err)
	}
	if _, err := dropTo("no-such-user"); err == nil || !strings.Contains(err.Error(), "no-such-user") {
		t.Errorf("no such user: %v", err)
	}
}

func TestServerArgsKeepTheServerPrivate(t *testing.T) {
	t.Parallel()
	got := serverArgs("/d", "/s", map[string]string{"work_mem": "1MB", "fsync": "off", "listen_addresses": "*"})
	want := []string{"-D", "/d", "-c", "fsync=off", "-c", "listen_addresses=*", "-c", "work_mem=1MB",
		"-p", "5432", "-k", "/s", "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}
