package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// appendParams turns a batch into the parameters of its statement. The heads of calls have
// copies of the results only if somebody needs these.
func appendParams(lease loop.Lease, batch Batch, copies bool) (db.AppendEventsParams, error) {
	p := db.AppendEventsParams{
		TenantID: lease.Run.Tenant, RunID: lease.Run.ID, Epoch: lease.Epoch, Owner: lease.Owner,
		Intent: batch.Intent, SignalsSeen: batch.SignalsSeen,
		// A run that has ended has no owner, whatever the caller says.
		Release: batch.Release || batch.Head.State.Terminal(),
	}
	if len(batch.Events) == 0 {
		return p, fmt.Errorf("append to run %s: the batch has no events", lease.Run.ID)
	}
	p.FirstSeq = batch.Events[0].Seq
	makeEventColumns(&p, len(batch.Events))
	makeCallColumns(&p, len(batch.Calls))
	for i, e := range batch.Events {
		if e.Seq != p.FirstSeq+int64(i) {
			return p, fmt.Errorf("append to run %s: event %d follows event %d: %w", lease.Run.ID, e.Seq, batch.Events[i-1].Seq, ErrWrongSeq)
		}
		if err := addEvent(&p, e); err != nil {
			return p, fmt.Errorf("append to run %s: %w", lease.Run.ID, err)
		}
		addUse(&p, e.Body, batch.Calls)
	}
	if err := setHead(&p, batch.Head); err != nil {
		return p, fmt.Errorf("append to run %s: head: %w", lease.Run.ID, err)
	}
	for _, c := range batch.Calls {
		if err := addCall(&p, c, owed(batch.Head, c)); err != nil {
			return p, fmt.Errorf("append to run %s: call %s: %w", lease.Run.ID, c.Call.ID, err)
		}
		addResult(&p, c, batch.Events, copies)
	}
	for _, child := range batch.Children {
		if err := addChild(&p, lease.Run, child); err != nil {
			return p, fmt.Errorf("append to run %s: child run %s: %w", lease.Run.ID, child.ID, err)
		}
	}
	for _, full := range batch.Results {
		if err := addFull(&p, full); err != nil {
			return p, fmt.Errorf("append to run %s: the full result of call %s: %w", lease.Run.ID, full.CallID, err)
		}
	}
	for _, out := range batch.Outgoing {
		if err := addOutgoing(&p, out); err != nil {
			return p, fmt.Errorf("append to run %s: signal to run %s: %w", lease.Run.ID, out.RunID, err)
		}
	}
	return p, nil
}

// columns makes the columns of so many rows out of one allocation: an append has some
// sixty of them, most with a single row. Without rows they stay nil.
func columns[T any](rows int, of ...*[]T) {
	if rows == 0 {
		return
	}
	all := make([]T, rows*len(of))
	for i, column := range of {
		*column = all[i*rows : i*rows : (i+1)*rows]
	}
}

func makeEventColumns(p *db.AppendEventsParams, rows int) {
	columns(rows, &p.Seqs)
	columns(rows, &p.Ats)
	columns(rows, &p.Kinds, &p.Bodies)
}

func makeCallColumns(p *db.AppendEventsParams, rows int) {
	columns(rows, &p.CallOrdinals, &p.CallIterations, &p.CallAttempts)
	columns(rows, &p.CallCuts)
	columns(rows, &p.CallBytes, &p.CallResultSeqs)
	columns(rows, &p.CallStarted, &p.CallFinished, &p.CallUntils, &p.CallAskedAt, &p.CallDecidedAt)
	columns(rows, &p.CallIds, &p.CallTools, &p.Calls, &p.CallHashes, &p.CallEffects, &p.CallStates, &p.CallOutcomes, &p.CallKeys,
		&p.CallResults, &p.CallChildren, &p.CallOwed, &p.CallAsked, &p.CallDecidedBy, &p.CallDecisions, &p.CallEdited)
}

// addEvent adds an event, and the limits that it puts in force.
func addEvent(p *db.AppendEventsParams, e loop.Event) error {
	kind, body, err := loop.EncodeBody(e.Body)
	if err != nil {
		return err
	}
	p.Seqs = append(p.Seqs, e.Seq)
	p.Kinds = append(p.Kinds, kind)
	p.Ats = append(p.Ats, e.At)
	p.Bodies = append(p.Bodies, string(body))
	if resumed, ok := e.Body.(loop.Resumed); ok {
		return setLimits(p, resumed.Limits)
	}
	return nil
}

func setHead(p *db.AppendEventsParams, h loop.Head) error {
	p.State, p.Phase = string(h.State), h.Phase
	p.Iterations, p.ModelCalls = int32(h.Iterations), int32(h.ModelCalls)
	p.ToolCalls, p.Attempts = int32(h.ToolCalls), int32(h.Attempts)
	p.CostPico, p.EstimatedPico, p.HeldPico = int64(h.Cost.Total()), int64(h.Estimated), int64(h.Held)
	p.Partial, p.Unverified = h.Partial, h.Unverified
	p.StartedAt, p.WakeAt, p.EndedAt = optional(h.StartedAt), optional(h.WaitUntil), optional(h.EndedAt)
	none := json.RawMessage("[]")
	p.RequiredActions, p.SideEffects, p.Answer = none, none, []byte(jsonString(h.Answer))
	if len(h.RequiredActions) > 0 {
		if err := encode(&p.RequiredActions, h.RequiredActions); err != nil {
			return err
		}
	}
	if len(h.SideEffects) > 0 {
		if err := encode(&p.SideEffects, h.SideEffects); err != nil {
			return err
		}
	}
	if h.Stop != nil {
		if err := encode(&p.Stop, h.Stop); err != nil {
			return err
		}
	}
	if err := encode(&p.Usage, h.Usage); err != nil {
		return err
	}
	return encode(&p.Cost, h.Cost)
}

// Who gives the result of a call that somebody outside runs.
const (
	owedByClient = loop.RequireSubmit
	owedByPerson = loop.RequireAnswer
)

// owed says who gives the call's result: the word of the action that the head
// requires for it, "" if nobody outside does.
func owed(head loop.Head, c loop.CallHead) string {
	if c.State != loop.CallOffered {
		return ""
	}
	for _, action := range head.RequiredActions {
		if action.CallID == c.Call.ID && (action.Kind == owedByClient || action.Kind == owedByPerson) {
			return action.Kind
		}
	}
	return ""
}

// The ordinal of a call follows from the event before which it is written, so that nobody
// has to look for the last one. It is kept as it was when the call was first written.
const (
	ordinalsPerSeq = 1000
	maxOrdinalSeq  = 2_000_000 // more would not fit into the column
)

func addCall(p *db.AppendEventsParams, c loop.CallHead, owed string) error {
	var call []byte
	if err := encode(&call, c.Call); err != nil {
		return err
	}
	askedAt := c.AskedAt
	if askedAt.IsZero() && owed == owedByPerson {
		askedAt = c.StartedAt // the question is the call itself
	}
	p.CallOrdinals = append(p.CallOrdinals, int32(min(p.FirstSeq, maxOrdinalSeq)*ordinalsPerSeq)+int32(len(p.CallIds))+1)
	p.CallIds = append(p.CallIds, c.Call.ID)
	p.CallTools = append(p.CallTools, printable(c.Call.Name))
	p.Calls = append(p.Calls, string(call))
	p.CallIterations = append(p.CallIterations, int32(c.Iteration))
	p.CallHashes = append(p.CallHashes, c.ArgsHash)
	p.CallEffects = append(p.CallEffects, string(c.Effect))
	p.CallStates = append(p.CallStates, string(c.State))
	p.CallOutcomes = append(p.CallOutcomes, string(c.Outcome))
	p.CallAttempts = append(p.CallAttempts, int32(c.Attempt))
	p.CallKeys = append(p.CallKeys, c.Key)
	p.CallCuts = append(p.CallCuts, c.Cut)
	p.CallBytes = append(p.CallBytes, c.Bytes)
	p.CallStarted = append(p.CallStarted, c.StartedAt)
	p.CallFinished = append(p.CallFinished, c.FinishedAt)
	p.CallUntils = append(p.CallUntils, c.Until)
	p.CallChildren = append(p.CallChildren, c.ChildID)
	p.CallOwed = append(p.CallOwed, owed)
	p.CallAsked = append(p.CallAsked, jsonString(c.Asked))
	p.CallAskedAt = append(p.CallAskedAt, askedAt)
	p.CallDecidedAt = append(p.CallDecidedAt, c.DecidedAt)
	p.CallDecidedBy = append(p.CallDecidedBy, printable(c.DecidedBy))
	p.CallDecisions = append(p.CallDecisions, jsonString(c.Decision))
	p.CallEdited = append(p.CallEdited, jsonString(c.Edited))
	return nil
}

// resultsOnce is the migration since which programs find results that are in the journal
// only. While one lives that does not, heads have copies.
const resultsOnce = 19

// addResult adds the result of a call, or the event of the batch that holds it.
func addResult(p *db.AppendEventsParams, c loop.CallHead, events []loop.Event, copies bool) {
	seq := int64(0)
	if !copies {
		seq = seqOfResult(events, c)
	}
	if seq > 0 {
		c.Result = ""
	}
	p.CallResults = append(p.CallResults, jsonString(c.Result))
	p.CallResultSeqs = append(p.CallResultSeqs, seq)
}

// seqOfResult is the event that holds the result of a call; 0: it is not among these.
func seqOfResult(events []loop.Event, c loop.CallHead) int64 {
	for _, e := range events {
		if id, result := resultIn(e.Body); id == c.Call.ID && result == c.Result {
			return e.Seq
		}
	}
	return 0
}

// resultIn is the result that an event holds as it is, and of which call; empty: none.
func resultIn(body loop.Body) (id, result string) {
	switch b := body.(type) {
	case loop.CallFinished:
		return b.CallID, b.Content
	case loop.CallRefused:
		return b.CallID, b.Content
	}
	return "", ""
}

// encode writes the JSON of value into a column.
func encode(column *[]byte, value any) (err error) {
	*column, err = json.Marshal(value)
	return err
}

// jsonString is the JSON of a string. Most columns that hold one are empty most of the time.
func jsonString(s string) string {
	if s == "" {
		return `""`
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // every string has a JSON
	}
	return string(quoted)
}

// decode reads what encode wrote.
func decode(column string, from []byte, to any) error {
	if len(from) == 0 {
		return nil
	}
	if err := json.Unmarshal(from, to); err != nil {
		return fmt.Errorf("column %s: %w", column, err)
	}
	return nil
}

// printable is text that a text column takes: valid UTF-8 without NUL.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// optional is nil for Go's zero time, which means "not yet".
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// timeOf is the inverse of optional, in UTC.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
