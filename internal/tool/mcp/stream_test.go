package mcp

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// FuzzEvents feeds the reader of event streams anything at all. What it passes on
// to the SDK must be whole messages of bounded size; it must not hang or panic.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{
		"", "data", ":\n\n", "id: 1\nretry: 5\ndata:\n\n", "event: ping\ndata: {\n\n",
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\r\n\r\n",
		"event: message\nid: 7\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := &Client{cfg: Config{MaxReadBytes: 1}}
		var given error
		watched := &flight{giveUp: func(err error) { given = err }}
		passed, err := io.ReadAll(c.events(io.NopCloser(strings.NewReader(text)), watched))
		if bad := errors.Is(err, errGarbage) || errors.Is(err, errTooLarge); bad != (given != nil) {
			t.Errorf("error %v, but the flight was ended by %v", err, given)
		}
		lines := bufio.NewScanner(strings.NewReader(string(passed)))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			if _, err := jsonrpc.DecodeMessage([]byte(data)); err != nil {
				t.Errorf("passed on %q: %v", data, err)
			}
		}
	})
}
