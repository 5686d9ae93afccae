package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// ResultQuery is what a model asks of the result of an earlier call: a part of it,
// or the lines that hold a text.
type ResultQuery struct {
	Call   string `json:"call"`   // "c3-1"
	Offset int64  `json:"offset"` // in bytes; in the middle of a character it counts from its start
	Limit  int64  `json:"limit"`  // in bytes; 0: as much as the model may see
	Find   string `json:"find"`   // exactly this text
}

// ParseResultQuery reads the arguments of the built-in that reads results.
func ParseResultQuery(args string) (ResultQuery, error) {
	var q ResultQuery
	if err := json.Unmarshal([]byte(args), &q); err != nil {
		return q, fmt.Errorf("the arguments cannot be read: %w", err)
	}
	if q.Call == "" || q.Offset < 0 || q.Limit < 0 {
		return q, errors.New(`call must name a call, such as "c3-1"; offset and limit must not be negative`)
	}
	return q, nil
}

const (
	// headRoom is left for the line that says which part it is.
	headRoom = 256
	// leastPart is what is shown at least, however little the model may see.
	leastPart = 128
	// lineRoom is how much is shown of a line that holds what was looked for: some
	// services answer with a megabyte in one line.
	lineRoom = 240
)

// Read answers the query from the whole text, in at most so many bytes.
func (q ResultQuery) Read(text string, most int64) loop.ToolReply {
	room := max(leastPart, most-headRoom)
	if q.Find != "" {
		return resultReply(q.found(text, int(room)))
	}
	if q.Offset >= int64(len(text)) && q.Offset > 0 {
		message := fmt.Sprintf("offset %d is past the end: the result of %s has %d bytes", q.Offset, q.Call, len(text))
		return loop.ToolReply{Outcome: loop.OutcomeInvalidArgs, Content: problem{Kind: "past_the_end", Message: message}.encode()}
	}
	if q.Limit > 0 {
		room = min(room, max(q.Limit, utf8.UTFMax)) // at least one character, so that it gets on
	}
	from := runeStart(text, int(q.Offset))
	to := runeStart(text, int(min(int64(len(text)), int64(from)+room)))
	head := fmt.Sprintf("[%s: bytes %d to %d of %d. ", q.Call, from, to, len(text))
	if to < len(text) {
		head += fmt.Sprintf("Read on with offset %d.]\n", to)
	} else {
		head += "This is the end.]\n"
	}
	return resultReply(head + text[from:to])
}

// found lists the lines that hold the text, with their numbers and the offsets at
// which it stands.
func (q ResultQuery) found(text string, room int) string {
	var b strings.Builder
	lines, hits, shown, at := 0, 0, 0, 0
	for line := range strings.Lines(text) {
		lines++
		if i := strings.Index(line, q.Find); i >= 0 {
			hits++
			from := runeStart(line, max(0, i-lineRoom/3))
			to := runeStart(line, min(len(line), from+lineRoom))
			entry := fmt.Sprintf("line %d, offset %d: %s\n", lines, at+i, strings.TrimRight(line[from:to], "\n"))
			if b.Len()+len(entry) <= room {
				b.WriteString(entry)
				shown++
			}
		}
		at += len(line)
	}
	if hits == 0 {
		return fmt.Sprintf("[%s: none of its %d lines holds that text. It has %d bytes.]", q.Call, lines, len(text))
	}
	return fmt.Sprintf("[%s: %d of %d lines hold that text, %d are shown. Read around one with its offset.]\n%s", q.Call, hits, lines, shown, b.String())
}

// runeStart moves an offset back to the start of the character that it is in.
func runeStart(text string, at int) int {
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return at
}

func resultReply(text string) loop.ToolReply {
	return loop.ToolReply{Outcome: loop.OutcomeOK, Content: text, Bytes: int64(len(text))}
}

// NoSuchResult tells the model that it named a call that the run does not have, and
// which it has.
func NoSuchResult(call string, have []loop.CallHead) loop.ToolReply {
	var known []string
	for _, c := range have {
		if c.Result != "" {
			known = append(known, fmt.Sprintf("%s (%s, %d bytes)", c.Call.ID, c.Call.Name, max(c.Bytes, int64(len(c.Result)))))
		}
	}
	const most = 20
	known = known[max(0, len(known)-most):]
	message := fmt.Sprintf("There is no result of a call %q. The newest are: %s.", excerpt(call), strings.Join(known, ", "))
	return loop.ToolReply{Outcome: loop.OutcomePermanent, Content: problem{Kind: "no_such_call", Message: message}.encode()}
}
