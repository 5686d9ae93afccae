package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/text/width"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

const (
	// draftMargin puts a draft where the lines between iterations are.
	draftMargin = "        "
	// draftColumns and draftRows fit the smallest usual terminal, 80 by 24. loopd does
	// not ask for the real size: on a smaller one, some rows of a draft that is taken
	// back stay. The last column is left free: terminals differ in what follows it.
	draftColumns = 79 - len(draftMargin)
	draftRows    = 20
)

// draft shows an answer while the model writes it. The message that comes of it
// replaces it. If the draft is its beginning the rest is added; else the message comes
// in its place on a terminal, and below it elsewhere.
type draft struct {
	w        io.Writer
	terminal bool // w moves its cursor when told
	dim      bool // and dims what is not for the reader

	call   int32 // the model call that writes it
	shown  []fragment
	column int  // of the cursor, behind the margin
	rows   int  // above that of the cursor
	mixed  bool // something else was written between its rows
}

// fragment is what a draft shows of one part of the answer.
type fragment struct {
	kind loop.PartKind
	tool string
	text string
}

// gap stands for what was lost on the way. No message has one.
const gap loop.PartKind = "gap"

// add writes what came.
func (d *draft) add(delta *loopdv1.Delta) {
	if delta.GetModelCall() != d.call {
		d.drop()
		d.call = delta.GetModelCall()
	}
	if delta.GetGap() {
		d.write(fragment{kind: gap, text: "…"})
	}
	for _, f := range delta.GetFragments() {
		d.write(fragment{loop.PartKind(f.GetKind()), f.GetTool(), f.GetText()})
	}
}

// replace puts the message that the draft became in its place. Nothing is written of
// a message without a draft.
func (d *draft) replace(m loop.Message) {
	if len(d.shown) == 0 {
		return
	}
	var whole []fragment
	for _, p := range m.Parts {
		f := fragment{kind: p.Kind, text: p.Text}
		if p.Call != nil {
			f.tool, f.text = p.Call.Name, p.Call.Args
		}
		whole = join(whole, f)
	}
	rest, begun := after(d.shown, whole)
	if !begun {
		d.drop()
		rest = whole
	}
	for _, f := range rest {
		d.write(f)
	}
	d.leave()
}

// after is what of the whole follows its beginning, if that is what it is.
func after(beginning, whole []fragment) (rest []fragment, ok bool) {
	last := len(beginning) - 1
	if last >= len(whole) || !slices.Equal(beginning[:last], whole[:last]) {
		return nil, false
	}
	f := whole[last]
	text, found := strings.CutPrefix(f.text, beginning[last].text)
	if !found || f.kind != beginning[last].kind || f.tool != beginning[last].tool {
		return nil, false
	}
	return append([]fragment{{kind: f.kind, text: text}}, whole[last+1:]...), true
}

// drop ends a draft that nothing came of: on a terminal it is taken back.
func (d *draft) drop() {
	if d.terminal && !d.mixed && d.rows < draftRows && len(d.shown) > 0 {
		up := ""
		if d.rows > 0 {
			up = fmt.Sprintf("\x1b[%dA", d.rows)
		}
		fmt.Fprint(d.w, "\r", up, "\x1b[J")
		d.column = 0
	}
	d.leave()
}

// leave ends a draft and lets it stand.
func (d *draft) leave() {
	d.makeWay()
	d.shown, d.rows, d.mixed = nil, 0, false
}

// makeWay ends the row, so that something else can be written.
func (d *draft) makeWay() {
	d.mixed = len(d.shown) > 0
	if d.column > 0 {
		fmt.Fprintln(d.w)
		d.column = 0
	}
}

// join puts a fragment behind the others. It continues the last one if both are of
// one kind, unless it begins a tool call.
func join(all []fragment, f fragment) []fragment {
	last := len(all) - 1
	switch {
	case f.text == "" && f.tool == "":
		return all
	case last < 0 || f.tool != "" || all[last].kind != f.kind:
		return append(all, f)
	}
	all[last].text += f.text
	return all
}

// write shows a fragment in rows of words.
func (d *draft) write(f fragment) {
	before := len(d.shown)
	d.shown = join(d.shown, f)
	var b strings.Builder
	afterGap := f.kind == gap || before > 0 && d.shown[before-1].kind == gap
	if len(d.shown) > before && d.column > 0 && !afterGap {
		d.feed(&b)
	}
	text := f.text
	if f.tool != "" {
		text = "→ " + f.tool + " " + text
	}
	for word := range strings.SplitAfterSeq(strings.ReplaceAll(clean(text), "\t", "    "), " ") {
		d.word(&b, word)
	}
	if d.dim && f.kind == loop.PartReasoning {
		fmt.Fprint(d.w, "\x1b[2m", b.String(), "\x1b[22m")
		return
	}
	fmt.Fprint(d.w, b.String())
}

// word writes a word, into the next row if it does not fit into this one. One that
// fits into no row is cut.
func (d *draft) word(b *strings.Builder, word string) {
	size := 0
	for _, r := range strings.TrimRight(word, " \n") {
		size += columns(r)
	}
	if d.column > 0 && d.column+size > draftColumns && size <= draftColumns {
		d.feed(b)
	}
	for _, r := range word {
		switch {
		case r == '\n':
			d.feed(b)
			continue
		case d.column+columns(r) > draftColumns:
			if r == ' ' {
				continue
			}
			d.feed(b)
		}
		if d.column == 0 {
			b.WriteString(draftMargin)
		}
		b.WriteRune(r)
		d.column += columns(r)
	}
}

// feed begins the next row.
func (d *draft) feed(b *strings.Builder) {
	b.WriteByte('\n')
	d.rows++
	d.column = 0
}

// columns is how wide a terminal shows a character.
func columns(r rune) int {
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// isTerminal reports whether somebody looks at w. The null device passes for one,
// and minds nothing.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
