package mcp

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxResumes is how often in a row a stream is asked for again without a new
// event: enough for a server that restarts, too few to wait for one that is gone.
const maxResumes = 3

var (
	errGarbage  = errors.New("the server's answer is not a JSON-RPC message")
	errTooLarge = errors.New("the server's answer is larger than loopd reads")
	errVanished = errors.New("the stream broke and could not be resumed")
	errSilent   = errors.New("the server neither answered nor reported progress for too long")
	errTwice    = errors.New("refused to send a call a second time")
)

// flight is one request of loopd's to a server, and what its bytes show. It
// travels in the request's context, past the SDK, to whoever carries the bytes.
type flight struct {
	once   bool                    // at most one POST, on a connection of its own
	giveUp context.CancelCauseFunc // ends the request

	mu        sync.Mutex
	id        jsonrpc.ID // of the message, once posted
	posted    bool
	sent      bool // it was given a connection, so bytes may have left
	forgotten bool // the server answered that it does not know the session
	status    *statusError
	bytes     int64
	answer    *jsonrpc.Response // complete, and to this request
	lastEvent string            // the ID of the last event of its stream
	resumes   int               // since the last new event
}

type flightKey struct{}

// withFlight gives the requests made under ctx a watcher.
func withFlight(ctx context.Context, f *flight) context.Context {
	return context.WithValue(ctx, flightKey{}, f)
}

// flightOf finds the watcher. A request without one gets one that nobody looks at.
func flightOf(ctx context.Context) *flight {
	if f, ok := ctx.Value(flightKey{}).(*flight); ok {
		return f
	}
	return &flight{giveUp: func(error) {}}
}

// post takes the one permission to send.
func (f *flight) post(id jsonrpc.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.once && f.posted {
		return errTwice
	}
	f.posted, f.id = true, id
	return nil
}

func (f *flight) markSent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = true
}

// resume counts a request to go on with a broken stream.
func (f *flight) resume() error {
	f.mu.Lock()
	f.resumes++
	exhausted := f.resumes > maxResumes
	f.mu.Unlock()
	if exhausted {
		// Before the SDK gives up: it would end the session, and with it the
		// calls of others.
		f.giveUp(errVanished)
		return errVanished
	}
	return nil
}

// event counts what came, by its ID in a stream or with none.
func (f *flight) event(id string, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += int64(size)
	if id != "" && id != f.lastEvent {
		f.lastEvent, f.resumes = id, 0
	}
}

// observe keeps the first complete answer to the request, and reports whether
// this one is an answer to it.
func (f *flight) observe(answer *jsonrpc.Response) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.posted || answer.ID != f.id {
		return false
	}
	if f.answer == nil {
		f.answer = answer
	}
	return true
}

// refuse keeps an answer that is no 2xx.
func (f *flight) refuse(status *statusError, forgotten bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.forgotten = status, forgotten
}

// seen is what a flight showed when it had ended.
type seen struct {
	sent, forgotten bool
	status          *statusError
	bytes           int64
	answer          *jsonrpc.Response
}

func (f *flight) seen() seen {
	if f == nil { // it never took off
		return seen{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return seen{sent: f.sent, forgotten: f.forgotten, status: f.status, bytes: f.bytes, answer: f.answer}
}

// statusError is an HTTP answer that is no 2xx.
type statusError struct {
	code       int
	text       string // what the server said, shortened
	retryAfter *int64 // seconds
}

// Error says what the server answered, without its text.
func (e *statusError) Error() string { return "HTTP " + statusText(e.code) }

func definiteRefusal(code int) bool {
	return code >= 400 && code <= 499 &&
		code != http.StatusRequestTimeout && code != http.StatusConflict && code != http.StatusTooEarly
}
