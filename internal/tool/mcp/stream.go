package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// events is a stream of server-sent events, each read whole, checked, and passed
// on in plain form. It never passes on a message that is none: the SDK would end
// the session.
type events struct {
	body   io.ReadCloser
	lines  *bufio.Reader
	limit  int64 // bytes of one event
	flight *flight
	ready  bytes.Buffer
}

func (c *Client) events(body io.ReadCloser, f *flight) *events {
	return &events{body: body, lines: bufio.NewReader(body), limit: c.readLimit(), flight: f}
}

// Close implements io.Closer.
func (e *events) Close() error { return e.body.Close() }

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	for e.ready.Len() == 0 {
		if err := e.next(); err != nil {
			if errors.Is(err, errGarbage) || errors.Is(err, errTooLarge) {
				e.flight.giveUp(err) // resuming would bring the same event
			}
			return 0, err
		}
	}
	return e.ready.Read(p)
}

// event is one server-sent event. Without data it may still move the place from
// which the stream is resumed.
type event struct {
	name, id, retry string
	data            []byte
	size            int64
}

// next reads one event and makes it ready. An event that the stream's end cut
// off is dropped, as the standard says.
func (e *events) next() error {
	var ev event
	for {
		line, err := e.line(&ev)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.name = string(value)
		case "id":
			ev.id = string(value)
		case "retry":
			ev.retry = string(value)
		case "data":
			if ev.data != nil {
				ev.data = append(ev.data, '\n')
			}
			ev.data = append(ev.data, value...)
		}
	}
	return e.pass(ev)
}

// line reads up to the end of a line, which is not part of it.
func (e *events) line(ev *event) ([]byte, error) {
	var line []byte
	for {
		part, err := e.lines.ReadSlice('\n')
		ev.size += int64(len(part))
		if ev.size > e.limit {
			return nil, errTooLarge
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("read the stream: %w", err)
		}
	}
}

// pass checks an event and writes it for the SDK.
func (e *events) pass(ev event) error {
	carries := len(bytes.TrimSpace(ev.data)) > 0 && (ev.name == "" || ev.name == "message")
	var compact bytes.Buffer
	if carries {
		if err := json.Compact(&compact, ev.data); err != nil {
			return errGarbage
		}
		message, err := jsonrpc.DecodeMessage(compact.Bytes())
		if err != nil {
			return errGarbage
		}
		if answer, ok := message.(*jsonrpc.Response); ok {
			e.flight.observe(answer) // one to another request is the SDK's to drop
		}
	}
	e.flight.event(ev.id, compact.Len())
	for _, field := range [][2]string{{"id", ev.id}, {"retry", ev.retry}, {"data", compact.String()}} {
		if field[1] != "" {
			fmt.Fprintf(&e.ready, "%s: %s\n", field[0], field[1])
		}
	}
	if e.ready.Len() > 0 {
		e.ready.WriteByte('\n')
	}
	return nil
}
