package loop

import (
	"strings"
	"unicode/utf8"
)

// prose is the prose at the end of a text that is being written: what follows the
// last line of code, of a table, of a list or of JSON. A heading that stands above
// each of ten lists is no chant.
type prose struct {
	tail []byte // its end, at least squeezeTail bytes once there are as many
	size int    // bytes of prose in the whole text so far

	head    string // of the current line, while its kind is open
	kind    lineKind
	fenced  bool // inside a code block
	started bool // something has been said
	json    bool // all of it is JSON
}

// lineKind is what a line has turned out to be.
type lineKind int

const (
	lineOpen  lineKind = iota // too short to tell
	lineProse                 // sentences
	lineOther                 // code, a list's or a table's line, a rule
	lineBlank
)

// add takes the next fragment.
func (p *prose) add(text string) {
	for len(text) > 0 {
		line, rest, ended := strings.Cut(text, "\n")
		p.addLine(line, ended)
		text = rest
		if !ended {
			return
		}
	}
}

// addLine takes a piece of the current line, or the rest of it.
func (p *prose) addLine(piece string, ended bool) {
	if p.kind == lineOpen {
		p.head += piece
		p.kind = p.judge(p.head, ended)
		piece = p.head
	}
	switch p.kind {
	case lineProse:
		if ended {
			piece += "\n"
		}
		p.keep(piece)
	case lineOther:
		p.tail = p.tail[:0]
	case lineOpen, lineBlank:
	}
	if p.kind != lineOpen {
		p.head = ""
	}
	if ended {
		p.head, p.kind = "", lineOpen
	}
}

// keep appends to the tail. It is cut only now and then.
func (p *prose) keep(text string) {
	p.size += len(text)
	p.tail = append(p.tail, text...)
	if extra := len(p.tail) - squeezeTail; extra > squeezeTail {
		p.tail = p.tail[:copy(p.tail, p.tail[extra:])]
	}
}

// What the lines of lists, tables, headings, quotations and rules begin with, and
// those of code and JSON.
const notProse = "-+|#>=_~.•·–—0123456789{}[]<"

// judge says what a line is, by its beginning. Its end decides if need be.
func (p *prose) judge(head string, ended bool) lineKind {
	trimmed := strings.TrimLeft(head, " \t\r")
	if len(trimmed) < utf8.UTFMax && !ended { // "```", and the first rune
		return lineOpen
	}
	if !p.started && trimmed != "" {
		p.started, p.json = true, trimmed[0] == '{' || trimmed[0] == '['
	}
	first, _ := utf8.DecodeRuneInString(trimmed)
	switch {
	case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
		p.fenced = !p.fenced
		return lineOther
	case trimmed == "":
		return lineBlank
	case p.fenced, p.json, strings.ContainsRune(notProse, first):
		return lineOther
	case first == '*' && !isBold(trimmed), strings.HasPrefix(head, "    "), strings.HasPrefix(head, "\t"):
		return lineOther
	}
	return lineProse
}

// isBold tells emphasis at the beginning of a sentence from a list's mark or a rule.
func isBold(line string) bool {
	rest := strings.TrimLeft(line, "*")
	return rest != "" && rest[0] != ' ' && len(line)-len(rest) <= 3
}
