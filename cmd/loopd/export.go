package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// exportLine is a line of an exported run. The lines with an event are those of a file of
// journals, so that guard test reads them; it passes over the others.
type exportLine struct {
	Run        string          `json:"run"`
	Head       json.RawMessage `json:"head,omitempty"`
	Event      *journalEvent   `json:"event,omitempty"`
	ModelCall  json.RawMessage `json:"modelCall,omitempty"`
	CallResult json.RawMessage `json:"callResult,omitempty"`
	Attachment json.RawMessage `json:"attachment,omitempty"`
}

// writePart writes one part of an export as a line.
func writePart(out *json.Encoder, part *loopdv1.ExportRunResponse) error {
	line := exportLine{Run: part.GetRun()}
	var err error
	switch p := part.GetPart().(type) {
	case *loopdv1.ExportRunResponse_Head:
		line.Head, err = protoJSON(p.Head)
	case *loopdv1.ExportRunResponse_Event:
		var event journalEvent
		event, err = journalEventOf(p.Event)
		line.Event = &event
	case *loopdv1.ExportRunResponse_ModelCall:
		line.ModelCall, err = protoJSON(p.ModelCall)
	case *loopdv1.ExportRunResponse_CallResult:
		line.CallResult, err = protoJSON(p.CallResult)
	case *loopdv1.ExportRunResponse_Attachment:
		line.Attachment, err = protoJSON(p.Attachment)
	default:
		return fmt.Errorf("export %s: this loopd does not know all that it has: use a newer one", part.GetRun())
	}
	if err == nil {
		err = out.Encode(line)
	}
	if err != nil {
		return fmt.Errorf("export %s: %w", part.GetRun(), err)
	}
	return nil
}

func protoJSON(m proto.Message) (json.RawMessage, error) { return protojson.Marshal(m) }

// writeFile writes a file as a whole or not at all: it has its name only when all of it
// is on the disk.
func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, ignoreClosedFile(f.Close()), os.Remove(f.Name())))
		}
	}()
	out := bufio.NewWriter(f)
	if err := write(out); err != nil {
		return err
	}
	if err := errors.Join(out.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func ignoreClosedFile(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// syncDir makes the names in a directory last.
func syncDir(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the operator names the directory
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// openRetention prepares what deletes runs, with the export before it.
func openRetention(d *daemon) (*postgres.Retention, error) {
	cfg := postgres.RetentionConfig{Keep: d.cfg.keep, Log: d.log, Registerer: d.registry}
	if d.cfg.exportDir != "" {
		if info, err := os.Stat(d.cfg.exportDir); err != nil || !info.IsDir() {
			return nil, usagef("--retention-export-dir %s: it is no directory: make it first, so that a typing error makes none", d.cfg.exportDir)
		}
		cfg.Export = d.exportRun
	}
	r, err := postgres.NewRetention(d.store, cfg)
	if err != nil {
		return nil, fmt.Errorf("retention: %w", err)
	}
	return r, nil
}

// exportRun writes a run to DIR/TENANT/DAY/RUN.jsonl, where DAY is that of its creation.
func (d *daemon) exportRun(ctx context.Context, run loop.RunRef) error {
	head, err := d.store.GetRun(ctx, run)
	if err != nil {
		return fmt.Errorf("export run %s: %w", run.ID, err)
	}
	dir := filepath.Join(d.cfg.exportDir, folderOf(run.Tenant), head.CreatedAt.Format(time.DateOnly))
	if err := os.MkdirAll(dir, 0o700); err != nil { // what people, models and tools wrote is for its owner
		return fmt.Errorf("export run %s: %w", run.ID, err)
	}
	return writeFile(filepath.Join(dir, run.ID+".jsonl"), func(w io.Writer) error {
		lines := newLines(w)
		return d.server.Export(ctx, run, func(part *loopdv1.ExportRunResponse) error { return writePart(lines, part) })
	})
}

func newLines(w io.Writer) *json.Encoder {
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	return lines
}

// plainName is a name that means the same in a path.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// folderOf names the folder of a tenant.
func folderOf(tenant string) string {
	if plainName.MatchString(tenant) {
		return tenant
	}
	return fmt.Sprintf("_%x", tenant)
}
