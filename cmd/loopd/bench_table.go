package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// benchCell is one measurement, or the medians of some. 0 is what could not be measured.
type benchCell struct {
	System              string  `json:"system"`
	Concurrency         int     `json:"concurrency"`
	Iterations          int     `json:"iterations"` // of each run
	Runs                int     `json:"runs"`       // that ended in the measurement
	IterationsPerSecond float64 `json:"iterations_per_second"`
	OverheadP50         float64 `json:"overhead_p50_ms,omitzero"` // between two model calls of a run, without the model's latency
	OverheadP99         float64 `json:"overhead_p99_ms,omitzero"`
	CommitsPerRun       float64 `json:"commits_per_run"`
	WALPerRun           float64 `json:"wal_bytes_per_run"`
	RowsPerIteration    float64 `json:"rows_per_iteration"`
	HotRuns             float64 `json:"hot_updates_of_runs_percent,omitzero"`       // updates that touched no index
	HotCalls            float64 `json:"hot_updates_of_tool_calls_percent,omitzero"` // the same
	MemoryPerRun        float64 `json:"memory_bytes_per_run,omitzero"`              // live heap and stacks at most, over that of the idle process
	CPUProcess          float64 `json:"cpu_seconds_per_1000_iterations,omitzero"`   // loopd, with the client and the servers in it
	CPUPostgres         float64 `json:"postgres_cpu_seconds_per_1000_iterations,omitzero"`
	Objects             float64 `json:"heap_objects_per_iteration,omitzero"` // of the same: load does not move it, as it does CPU time
	Bytes               float64 `json:"heap_bytes_per_iteration,omitzero"`
	CreateP50           float64 `json:"create_p50_ms"`
	CreateP99           float64 `json:"create_p99_ms"`
	StartP50            float64 `json:"start_p50_ms,omitzero"` // from before the create to the first model call
	StartP99            float64 `json:"start_p99_ms,omitzero"`
}

// benchMedians takes the median of each figure by itself.
func benchMedians(cells []benchCell) benchCell {
	return benchCell{
		System:              cells[0].System,
		Concurrency:         cells[0].Concurrency,
		Iterations:          cells[0].Iterations,
		Runs:                median(cells, func(c benchCell) int { return c.Runs }),
		IterationsPerSecond: median(cells, func(c benchCell) float64 { return c.IterationsPerSecond }),
		OverheadP50:         median(cells, func(c benchCell) float64 { return c.OverheadP50 }),
		OverheadP99:         median(cells, func(c benchCell) float64 { return c.OverheadP99 }),
		CommitsPerRun:       median(cells, func(c benchCell) float64 { return c.CommitsPerRun }),
		WALPerRun:           median(cells, func(c benchCell) float64 { return c.WALPerRun }),
		RowsPerIteration:    median(cells, func(c benchCell) float64 { return c.RowsPerIteration }),
		HotRuns:             median(cells, func(c benchCell) float64 { return c.HotRuns }),
		HotCalls:            median(cells, func(c benchCell) float64 { return c.HotCalls }),
		MemoryPerRun:        median(cells, func(c benchCell) float64 { return c.MemoryPerRun }),
		CPUProcess:          median(cells, func(c benchCell) float64 { return c.CPUProcess }),
		CPUPostgres:         median(cells, func(c benchCell) float64 { return c.CPUPostgres }),
		Objects:             median(cells, func(c benchCell) float64 { return c.Objects }),
		Bytes:               median(cells, func(c benchCell) float64 { return c.Bytes }),
		CreateP50:           median(cells, func(c benchCell) float64 { return c.CreateP50 }),
		CreateP99:           median(cells, func(c benchCell) float64 { return c.CreateP99 }),
		StartP50:            median(cells, func(c benchCell) float64 { return c.StartP50 }),
		StartP99:            median(cells, func(c benchCell) float64 { return c.StartP99 }),
	}
}

func median[N cmp.Ordered](cells []benchCell, figure func(benchCell) N) N {
	figures := make([]N, len(cells))
	for i, c := range cells {
		figures[i] = figure(c)
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}

// printBench prints a table, or one JSON array.
func printBench(w io.Writer, rows []benchCell, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		if err := out.Encode(rows); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	lines := [][]string{{
		"AT ONCE", "SYSTEM", "ITERATIONS", "RUNS", "IT/S", "OVERHEAD MS P50/P99", "COMMITS/RUN", "WAL KB/IT", "ROWS/IT", "HOT % RUNS/CALLS",
		"CPU S/1000 IT", "POSTGRES", "OBJECTS/IT", "HEAP KB/IT", "KB/RUN", "CREATE MS P50/P99", "START MS P50/P99",
	}}
	for _, r := range rows {
		lines = append(lines, []string{
			strconv.Itoa(r.Concurrency), r.System, strconv.Itoa(r.Iterations), strconv.Itoa(r.Runs), figure(r.IterationsPerSecond, 0), pair(r.OverheadP50, r.OverheadP99),
			figure(r.CommitsPerRun, 1), figure(r.WALPerRun/1024/float64(r.Iterations), 1), figure(r.RowsPerIteration, 1), figure(r.HotRuns, 0) + " / " + figure(r.HotCalls, 0),
			figure(r.CPUProcess, 2), figure(r.CPUPostgres, 2), figure(r.Objects, 0), figure(r.Bytes/1024, 0), figure(r.MemoryPerRun/1024, 0),
			pair(r.CreateP50, r.CreateP99), pair(r.StartP50, r.StartP99),
		})
	}
	return indentedTable(w, "", lines)
}

// figure prints a measured number; what was not measured is a dash.
func figure(f float64, decimals int) string {
	if f == 0 {
		return "-"
	}
	return strconv.FormatFloat(f, 'f', decimals, 64)
}

func pair(p50, p99 float64) string { return figure(p50, 1) + " / " + figure(p99, 1) }
