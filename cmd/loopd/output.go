package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// writeJSON writes a message as the REST API would, indented.
func writeJSON(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	// protojson varies its white space on purpose; scripts and people want it fixed.
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err = b.WriteTo(w)
	return err
}

// writeJSONLine writes a message as one line, for streams.
func writeJSONLine(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err = b.WriteTo(w)
	return err
}

// table writes rows of cells in columns. The cells come from models and tools as
// well, so they are made safe for a terminal.
func table(w io.Writer, rows [][]string) error { return indentedTable(w, "", rows) }

// indentedTable is table with a margin before each row.
func indentedTable(w io.Writer, margin string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = oneLine(cell)
		}
		fmt.Fprintln(tw, margin+strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return tw.Flush()
}

// clean replaces what could steer a terminal: control and formatting characters,
// except line breaks and tabs.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// oneLine makes a text fit for a table cell.
func oneLine(s string) string { return strings.Join(strings.Fields(clean(s)), " ") }

// cut shortens a text to n characters and marks that it did.
func cut(s string, n int) string {
	runes := []rune(oneLine(s))
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// indent puts two spaces before each line of a text.
func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(clean(s), "\n"), "\n", "\n  ")
}

// word is the part of an enum's name that says something: "STOPPED" of
// RUN_STATE_STOPPED.
func word(enum fmt.Stringer, prefix string) string { return strings.TrimPrefix(enum.String(), prefix) }

// stateOf is the state of a run in one word.
func stateOf(run *loopdv1.Run) string { return word(run.GetState(), "RUN_STATE_") }

// usd writes an amount as the API gives it, with the currency.
func usd(amount string) string {
	if amount == "" {
		amount = "0"
	}
	return amount + " USD"
}

// clock writes a time in UTC, to the second, or "-" for none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format(time.DateTime) + "Z"
}
