package mcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	methodCall   = "tools/call"
	methodListen = "subscriptions/listen"

	sessionHeader = "Mcp-Session-Id"

	// refusalBytes are read of an answer that is no 2xx: more than is shown of it.
	refusalBytes = 64 << 10
	eventStream  = "text/event-stream"
)

// wire carries the HTTP requests of one session. The SDK ends a session over one
// bad answer, and with it the calls of other runs; so the wire reads answers
// first and hands on only those that are in order. All else becomes an error of
// the one request.
type wire struct {
	client  *Client
	session *session
	header  http.Header // as configured, secrets resolved
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.Method == http.MethodPost:
		return w.post(req)
	case req.Method == http.MethodGet && req.Header.Get("Last-Event-Id") != "":
		return w.resume(req)
	case req.Method == http.MethodGet:
		return w.listen(req, nil), nil
	}
	return w.send(req, nil, &flight{})
}

// post sends a message. Only requests have an answer to look at.
func (w *wire) post(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close() // it is a buffer of the SDK's
	if err != nil {
		return nil, fmt.Errorf("read the message: %w", err)
	}
	message, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return nil, fmt.Errorf("read the message: %w", err)
	}
	call, ok := message.(*jsonrpc.Request)
	switch {
	case !ok || !call.IsCall():
		return w.notify(req, body)
	case call.Method == methodListen:
		return w.listen(req, body), nil
	}
	f := flightOf(req.Context())
	if err := f.post(call.ID); err != nil {
		return nil, err
	}
	resp, err := w.send(req, body, f)
	if err != nil {
		return nil, err
	}
	return w.received(req, resp, f, call)
}

// notify sends what has no answer.
func (w *wire) notify(req *http.Request, body []byte) (*http.Response, error) {
	resp, err := w.send(req, body, &flight{})
	if err != nil || resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return resp, err
	}
	return nil, refusal(resp)
}

// send puts one request on the wire.
func (w *wire) send(req *http.Request, body []byte, f *flight) (*http.Response, error) {
	// Resolve, dial and TLS all come before GotConn.
	traced := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { f.markSent() }})
	out := req.Clone(traced)
	maps.Copy(out.Header, w.header)
	out.Header.Set("User-Agent", "loopd")
	out.GetBody = nil // a body that cannot be rewound cannot be sent twice
	if body != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	transport := w.client.repeatable
	switch {
	case f.once && body != nil:
		transport = w.client.single
	case body != nil:
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	return resp, nil
}

// received reads the answer to a request as far as it must be known to be in order.
func (w *wire) received(req *http.Request, resp *http.Response, f *flight, call *jsonrpc.Request) (*http.Response, error) {
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return w.refused(req, resp, f, call)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch kind {
	case eventStream:
		resp.Body = w.client.events(resp.Body, f)
		return resp, nil
	case "application/json":
	default:
		_ = resp.Body.Close() // nothing in it can be an answer
		return nil, fmt.Errorf("%w: its content type is %q", errGarbage, kind)
	}
	body, err := readUpTo(resp.Body, w.client.readLimit())
	if err != nil {
		return nil, err
	}
	f.event("", len(body))
	if answer, ok := decodeAnswer(body); !ok || !f.observe(answer) {
		return nil, errGarbage
	}
	return withBody(resp, body), nil
}

// refused turns an answer that is no 2xx into an error of this one request.
func (w *wire) refused(req *http.Request, resp *http.Response, f *flight, call *jsonrpc.Request) (*http.Response, error) {
	if denied(resp.StatusCode) && w.session.authorizes() {
		return resp, nil // the SDK gets a token and asks again
	}
	status := refusal(resp)
	// 404 is what the protocol asks for; servers made after an early example of
	// the official SDK answer 400 and say what is missing.
	forgotten := req.Header.Get(sessionHeader) != "" &&
		(status.code == http.StatusNotFound || status.code == http.StatusBadRequest && strings.Contains(strings.ToLower(status.text), "session"))
	f.refuse(status, forgotten)
	answer, ok := decodeAnswer([]byte(status.text))
	if !ok || answer.Error == nil || call.Method == methodCall {
		return nil, status
	}
	// The two sides agree on a version by such an error. Not every server knows
	// what it answers.
	answer.ID = call.ID
	body, err := jsonrpc.EncodeMessage(answer)
	if err != nil {
		return nil, fmt.Errorf("pass the server's error on: %w", err)
	}
	resp.StatusCode = http.StatusOK
	resp.Header.Set("Content-Type", "application/json")
	return withBody(resp, body), nil
}

func denied(code int) bool { return code == http.StatusUnauthorized || code == http.StatusForbidden }

// resume goes on with the stream of an answer. It names an event, not a call.
func (w *wire) resume(req *http.Request) (*http.Response, error) {
	f := flightOf(req.Context())
	if err := f.resume(); err != nil {
		return nil, err
	}
	resp, err := w.send(req, nil, f)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != eventStream {
		_ = resp.Body.Close() // it is no stream
		f.giveUp(errVanished)
		return nil, fmt.Errorf("%w: HTTP %s, %q", errVanished, statusText(resp.StatusCode), kind)
	}
	resp.Body = w.client.events(resp.Body, f)
	return resp, nil
}

// readLimit bounds one message. JSON and base64 make content longer than it is.
func (c *Client) readLimit() int64 { return 4*c.cfg.MaxReadBytes + 64<<10 }

// readUpTo reads a whole body of at most limit bytes, after decompression.
func readUpTo(body io.ReadCloser, limit int64) ([]byte, error) {
	defer func() { _ = body.Close() }() // it is read or given up by then
	read, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case int64(len(read)) > limit:
		return nil, errTooLarge
	}
	return read, nil
}

// decodeAnswer reads a message that answers one of ours.
func decodeAnswer(body []byte) (*jsonrpc.Response, bool) {
	message, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return nil, false
	}
	answer, ok := message.(*jsonrpc.Response)
	return answer, ok
}

func withBody(resp *http.Response, body []byte) *http.Response {
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp
}

// refusal reads an answer that is no 2xx.
func refusal(resp *http.Response) *statusError {
	defer func() { _ = resp.Body.Close() }() // what is not read by then is not wanted
	text, _ := io.ReadAll(io.LimitReader(resp.Body, refusalBytes))
	return &statusError{code: resp.StatusCode, text: string(text), retryAfter: retryAfter(resp.Header)}
}

// retryAfter reads the header in both of its forms, in whole seconds.
func retryAfter(h http.Header) *int64 {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return nil
	}
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds >= 0 {
		return &seconds
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return nil
	}
	seconds := max(0, int64(time.Until(at).Round(time.Second)/time.Second))
	return &seconds
}

func statusText(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// listen answers the SDK's request for news with a stream at once, and asks the
// server when that stream is read, by a goroutine of the SDK's. So a server that
// is slow to begin, or offers no news, does not hold up the session, and one
// whose stream ends does not end it.
func (w *wire) listen(req *http.Request, body []byte) *http.Response {
	return &http.Response{
		Status: statusText(http.StatusOK), StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {eventStream}}, Request: req, ContentLength: -1,
		Body: &news{open: func() io.ReadCloser { return w.openNews(req, body) }, missed: w.session.changed, over: req.Context().Done()},
	}
}

// openNews asks for notifications, and returns nil if there are none to be had.
func (w *wire) openNews(req *http.Request, body []byte) io.ReadCloser {
	resp, err := w.send(req, body, &flight{})
	if err != nil {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != eventStream {
		_ = resp.Body.Close() // it has no news
		return nil
	}
	return w.client.events(resp.Body, &flight{giveUp: func(error) {}})
}

// news is a stream of notifications that does not end before its session does.
// Losing it loses time only: definitions are looked up anew after a while.
type news struct {
	open   func() io.ReadCloser
	missed func() // something may have changed without notice
	over   <-chan struct{}
	stream io.ReadCloser
	begun  bool
}

// Read waits for the next notification. What changed before the stream was open,
// and before its first event, which acknowledges the subscription, went unheard.
func (n *news) Read(p []byte) (int, error) {
	if n.stream == nil {
		if n.stream = n.open(); n.stream == nil {
			<-n.over
			return 0, context.Canceled
		}
		n.missed()
	}
	read, err := n.stream.Read(p)
	if err == nil && n.begun {
		return read, nil
	}
	n.begun = true
	n.missed()
	if err == nil {
		return read, nil
	}
	<-n.over
	return 0, context.Canceled
}

// Close implements io.Closer.
func (n *news) Close() error {
	if n.stream == nil {
		return nil
	}
	return n.stream.Close()
}
