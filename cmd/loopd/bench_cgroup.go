package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// controlGroup bounds the CPU time of processes. A nil one bounds nothing.
type controlGroup struct{ dir string }

// cpuPeriod is the time within which Linux hands out a group's share, in microseconds: a
// tenth of the usual, so that a bounded replica does not stand still for long.
const cpuPeriod = 10_000

// newControlGroup makes a group with so many cores, of version 2 if the CPU is controlled
// there, else of version 1. It takes root.
func newControlGroup(name string, cores float64) (*controlGroup, error) {
	quota := strconv.Itoa(int(cores * cpuPeriod))
	versions := []struct {
		root  string
		write [][2]string
	}{
		{"/sys/fs/cgroup", [][2]string{{"cpu.max", quota + " " + strconv.Itoa(cpuPeriod)}}},
		{"/sys/fs/cgroup/cpu", [][2]string{{"cpu.cfs_period_us", strconv.Itoa(cpuPeriod)}, {"cpu.cfs_quota_us", quota}}},
	}
	var problems []error
	for _, v := range versions {
		g := &controlGroup{dir: filepath.Join(v.root, name)}
		err := os.Mkdir(g.dir, 0o700)
		for _, file := range v.write {
			if err == nil {
				err = g.write(file[0], file[1])
			}
		}
		if err == nil {
			return g, nil
		}
		g.remove()
		problems = append(problems, err)
	}
	return nil, fmt.Errorf("--cores takes root and control groups that can be made: %w", errors.Join(problems...))
}

// write sets a value. The file is there as soon as the group is; making it would only hide
// that it is not.
func (g *controlGroup) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0) //nolint:gosec // of the group that was just made
	if err != nil {
		return fmt.Errorf("bound the CPU: %w", err)
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// add puts a process into the group.
func (g *controlGroup) add(pid int) error {
	if g == nil {
		return nil
	}
	return g.write("cgroup.procs", strconv.Itoa(pid))
}

// remove removes the group, once its processes have ended.
func (g *controlGroup) remove() {
	if g != nil {
		_ = os.Remove(g.dir) // empty by now, or not made
	}
}
