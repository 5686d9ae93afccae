package provider

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// Events reads the data of server-sent events. Event names are not needed: both
// wire formats repeat what matters inside the data.
type Events struct {
	r     *bufio.Reader
	begun bool
}

// maxEvent bounds one event, in bytes. The largest that providers send repeat a
// whole answer at its end: some hundred kilobytes.
const maxEvent = 8 << 20

// NewEvents reads events from r.
func NewEvents(r *bufio.Reader) *Events { return &Events{r: r} }

// Next returns the data of the next event that has any, as valid UTF-8, or
// io.EOF at the end. An event that the end of the body cuts off is returned as
// far as it came: its data is then no complete JSON, which callers must check. An
// event of more than 8 MiB is an error.
func (e *Events) Next() ([]byte, error) {
	var data []byte
	for has := false; ; {
		line, err := e.line(maxEvent - len(data))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if !e.begun {
			line, e.begun = bytes.TrimPrefix(line, []byte("\uFEFF")), true
		}
		line = bytes.TrimRight(line, "\r\n")
		if value, ok := field(line, "data"); ok {
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
		}
		switch {
		case has && (len(line) == 0 || err != nil):
			if !utf8.Valid(data) { // else there is nothing to copy
				data = bytes.ToValidUTF8(data, []byte("\uFFFD"))
			}
			return data, nil // the last event is whole; the next read says that it was the last
		case err != nil:
			return nil, io.EOF
		}
	}
}

// line reads a line of at most limit bytes. The line is valid until the next call
// if it fits the reader's buffer.
func (e *Events) line(limit int) ([]byte, error) {
	var long []byte
	for {
		piece, err := e.r.ReadSlice('\n')
		switch {
		case len(long)+len(piece) > limit:
			return nil, &loop.ModelError{Class: unreadable.class(), Message: "an event of the stream is larger than loopd reads (8 MiB)"}
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, piece...)
		case long == nil:
			return piece, err
		default:
			return append(long, piece...), err
		}
	}
}

// field returns the value if line is the named field. Leading spaces are not in
// the specification, but one gateway sends them.
func field(line []byte, name string) ([]byte, bool) {
	key, value, _ := bytes.Cut(bytes.TrimLeft(line, " "), []byte(":"))
	if string(key) != name {
		return nil, false
	}
	return bytes.TrimPrefix(value, []byte(" ")), true
}
