package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/loopd/loopd/internal/server"
)

// fairness is what one tenant may take from the others, and all of them from the machine.
type fairness struct {
	tenantRuns    int
	tenantQueued  int
	tenantCreates int
	queueAge      time.Duration
	poolWait      time.Duration
}

// fairnessFlags are the names of its flags.
func fairnessFlags() []string {
	return []string{"tenant-max-runs", "tenant-max-queued", "tenant-max-creates", "shed-queue-age", "shed-pool-wait"}
}

func (c *fairness) flags(f *pflag.FlagSet) {
	f.IntVar(&c.tenantRuns, "tenant-max-runs", 0, "runs of one tenant that this worker drives at once; 0: as many as there is room for [LOOPD_TENANT_MAX_RUNS]")
	f.IntVar(&c.tenantQueued, "tenant-max-queued", 0, "runs of one tenant that may wait for a worker; more are refused; 0: any number [LOOPD_TENANT_MAX_QUEUED]")
	f.IntVar(&c.tenantCreates, "tenant-max-creates", 0, "new runs of one tenant that this replica takes a second; more wait for up to a second, and are refused beyond; 0: any number [LOOPD_TENANT_MAX_CREATES]")
	f.DurationVar(&c.queueAge, "shed-queue-age", 30*time.Second, "refuse new runs while one has waited so long for a worker; 0: never [LOOPD_SHED_QUEUE_AGE]")
	f.DurationVar(&c.poolWait, "shed-pool-wait", time.Second, "refuse new runs while one waits so long for a database connection, and reads from half of it; 0: never [LOOPD_SHED_POOL_WAIT]")
}

// faults are what makes no sense.
func (c *fairness) faults() (errs []error) {
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"tenant-max-runs", int64(c.tenantRuns)}, {"tenant-max-queued", int64(c.tenantQueued)}, {"tenant-max-creates", int64(c.tenantCreates)},
		{"shed-queue-age", int64(c.queueAge)}, {"shed-pool-wait", int64(c.poolWait)},
	} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("--%s is below 0: use 0 for no such bound", n.name))
		}
	}
	return errs
}

// shed is when the server refuses requests.
func (c *fairness) shed() server.Shed {
	never := func(d time.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d
	}
	return server.Shed{QueueAge: never(c.queueAge), PoolWait: never(c.poolWait), TenantQueue: c.tenantQueued, TenantCreates: c.tenantCreates}
}
