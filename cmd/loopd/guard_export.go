package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// exportPage is how many events are asked for at once: their results may be large.
const exportPage = 200

// journalLine is a line of a file of journals: an event as the API shows it, with the
// run that it is of. The events of a run stand together and in order.
type journalLine struct {
	Run   string       `json:"run"`
	Event journalEvent `json:"event"`
}

// journalEvent has the members of the API's Event; numbers of 64 bits are strings.
type journalEvent struct {
	Seq        json.Number     `json:"seq"`
	Kind       string          `json:"kind"`
	CreateTime time.Time       `json:"createTime"`
	Iteration  int32           `json:"iteration,omitempty"`
	Epoch      json.Number     `json:"epoch,omitempty"`
	Body       json.RawMessage `json:"body"`
}

func (c *client) guardExport() *cobra.Command {
	var since, agent string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write journals of runs that have ended, for guard test --file",
		Long: `Write the journals of runs that have ended to standard output, the newest run
first: one event per line, as {"run": "runs/...", "event": {...}}. They hold what
people, models and tools wrote. Child runs are only written with --agent.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&since, "since", "7d", "only runs created in the last SPAN")
	cmd.Flags().StringVar(&agent, "agent", "", "only runs of this agent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		back, err := lookBack("since", since)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(c.env.Stdout)
		runs, err := c.exportRuns(cmd.Context(), out, agentName(agent), c.now().Add(-back))
		if flushed := out.Flush(); err == nil {
			err = flushed
		}
		if err == nil {
			fmt.Fprintf(c.env.Stderr, "%d journals\n", runs)
		}
		return err
	}
	return cmd
}

// exportRuns writes the journals of runs since a time, page by page.
func (c *client) exportRuns(ctx context.Context, out io.Writer, agent string, since time.Time) (runs int, err error) {
	req := &loopdv1.ListRunsRequest{Agent: agent, PageSize: pageSize, States: []loopdv1.RunState{
		loopdv1.RunState_RUN_STATE_SUCCEEDED, loopdv1.RunState_RUN_STATE_STOPPED, loopdv1.RunState_RUN_STATE_FAILED, loopdv1.RunState_RUN_STATE_CANCELLED,
	}}
	for {
		page, err := c.runs.ListRuns(ctx, req)
		if err != nil {
			return runs, err
		}
		for _, run := range page.GetRuns() {
			if run.GetCreateTime().AsTime().Before(since) {
				return runs, nil
			}
			if agent == "" && run.GetParent() != "" { // its cost is in that of its parent
				continue
			}
			if err := c.exportJournal(ctx, out, run.GetName()); err != nil {
				return runs, err
			}
			runs++
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return runs, nil
		}
	}
}

func (c *client) exportJournal(ctx context.Context, out io.Writer, run string) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	req := &loopdv1.ListEventsRequest{Parent: run, PageSize: exportPage}
	for {
		page, err := c.runs.ListEvents(ctx, req)
		if err != nil {
			return err
		}
		for _, e := range page.GetEvents() {
			event, err := journalEventOf(e)
			if err != nil {
				return fmt.Errorf("export %s: %w", run, err)
			}
			line := journalLine{Run: run, Event: event}
			if err := lines.Encode(line); err != nil {
				return fmt.Errorf("export %s: %w", run, err)
			}
			req.AfterSeq = e.GetSeq()
		}
		if !page.GetHasMore() {
			return nil
		}
	}
}

// journalEventOf writes an event as files of journals have it.
func journalEventOf(e *loopdv1.Event) (journalEvent, error) {
	body, err := json.Marshal(e.GetBody().AsMap())
	if err != nil {
		return journalEvent{}, fmt.Errorf("event %d: %w", e.GetSeq(), err)
	}
	return journalEvent{
		Seq: numberOf(e.GetSeq()), Kind: e.GetKind(), CreateTime: e.GetCreateTime().AsTime(),
		Iteration: e.GetIteration(), Epoch: numberOf(e.GetEpoch()), Body: body,
	}, nil
}

func numberOf(n int64) json.Number { return json.Number(fmt.Sprint(n)) }

// readJournals hands each journal of a file to take, one at a time. An error names the
// line.
func (c *client) readJournals(file string, take func(loop.RunRef, []loop.Event) error) error {
	in := c.env.Stdin
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file to read
		if err != nil {
			return usagef("read journals: %w", err)
		}
		defer f.Close()
		in = f
	}
	var run string
	var events []loop.Event
	done := map[string]bool{}
	end := func() error {
		if run == "" {
			return nil
		}
		done[run] = true
		return take(loop.RunRef{ID: strings.TrimPrefix(run, "runs/")}, events)
	}
	lines, number := bufio.NewReader(in), 0
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read journals: %w", err)
		}
		last := err != nil
		number++
		if text = journalText(bytes.TrimSpace(text)); len(text) > 0 {
			name, event, err := readLine(text)
			switch {
			case err != nil:
				return usagef("%s, line %d: %w", file, number, err)
			case done[name]:
				return usagef("%s, line %d: the events of %s do not stand together: sort the file by run and seq", file, number, name)
			case name != run:
				if err := end(); err != nil {
					return err
				}
				run, events = name, nil
			}
			if want := int64(len(events) + 1); event.Seq != want {
				return usagef("%s, line %d: event %d of %s stands where event %d should: is a line missing?", file, number, event.Seq, name, want)
			}
			events = append(events, event)
		}
		if last {
			return end()
		}
	}
}

// journalText is what a line of a file says of a journal. Of an exported run some lines
// are of other things, and REST wraps each.
func journalText(line []byte) []byte {
	var part map[string]json.RawMessage
	if json.Unmarshal(line, &part) != nil || part["event"] != nil {
		return line
	}
	if part["result"] != nil {
		return journalText(part["result"])
	}
	for _, other := range []string{"head", "modelCall", "callResult", "attachment"} {
		if part[other] != nil {
			return nil
		}
	}
	return line
}

// readLine reads a line as export writes it. Members that it does not know are passed
// over: a newer loopd may have written them.
func readLine(text []byte) (run string, event loop.Event, err error) {
	var line journalLine
	if err := json.Unmarshal(text, &line); err != nil {
		return "", loop.Event{}, fmt.Errorf("it is no event: %w", err)
	}
	seq, err := line.Event.Seq.Int64()
	if err != nil || !strings.HasPrefix(line.Run, "runs/") {
		return "", loop.Event{}, errors.New(`it is no {"run": "runs/...", "event": {"seq": ...}}`)
	}
	body, err := loop.DecodeBody(line.Event.Kind, line.Event.Body)
	if err != nil {
		return "", loop.Event{}, err
	}
	epoch, err := line.Event.Epoch.Int64()
	if err != nil {
		epoch = 0 // of no use to a backtest
	}
	return line.Run, loop.Event{Seq: seq, At: line.Event.CreateTime.UTC(), Epoch: epoch, Body: body}, nil
}
