package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

const (
	// benchFloorPeer is where the floor has its model and its tool.
	benchFloorPeer = "127.0.0.1:18080"
	// benchFloorSchema keeps the floor's tables apart from loopd's.
	benchFloorSchema = "floor"
	benchFloorRuns   = 1_000_000_000 // more than any machine makes
)

// floor measures the floor once at one concurrency: what the same work costs a program
// that was written for it alone, without guards, fence or holds.
func (b *benchClient) floor(ctx context.Context, concurrency int) (benchCell, error) {
	if _, err := b.meter.conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+benchFloorSchema); err != nil {
		return benchCell{}, fmt.Errorf("make a schema for the floor: %w", err)
	}
	runs := b.o.runs
	if runs == 0 {
		runs = benchFloorRuns
	}
	cmd := exec.CommandContext(ctx, b.o.floor, //nolint:gosec // the user names the program
		"-mode", "grouprun", "-conc", strconv.Itoa(concurrency), "-runs", strconv.Itoa(runs), "-max", b.o.duration.String(),
		"-db", b.o.databaseURL, "-pgset", "search_path="+benchFloorSchema, "-reset")
	cell, _, err := b.metered(ctx, concurrency, func() (int, []time.Duration, error) {
		out, err := cmd.Output()
		if err != nil {
			return 0, nil, fmt.Errorf("run the floor %s: %w", b.o.floor, err)
		}
		var said struct {
			Runs   int `json:"runs"`
			Errors int `json:"errors"`
		}
		if err := json.Unmarshal(out, &said); err != nil {
			return 0, nil, fmt.Errorf("read what the floor says: %w", err)
		}
		if said.Errors > 0 {
			return 0, nil, fmt.Errorf("%w: the floor had %d errors", errBench, said.Errors)
		}
		return said.Runs, nil, nil
	})
	if err != nil {
		return benchCell{}, err
	}
	cell.System = "floor"
	// Only the model and the tool ran in this process.
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	cell.CPUProcess = cpu.Seconds() * 1000 / float64(max(1, cell.Runs*cell.Iterations))
	cell.MemoryPerRun, cell.RowsPerIteration, cell.HotRuns, cell.HotCalls = 0, 0, 0, 0
	return cell, nil
}
