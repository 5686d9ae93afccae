package provider

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Defaults of a Transport. Providers advise streaming for long answers; on a
// stream a minute before the first byte and half a minute between two bytes are
// far beyond what a working one needs.
const (
	DefaultFirstByteTimeout       = 60 * time.Second
	DefaultIdleTimeout            = 30 * time.Second
	DefaultMaxResponseBytes int64 = 8 << 20

	connectTimeout = 5 * time.Second
	maxErrorBytes  = 64 << 10
)

// errSilent is the cause with which the watch cancels a request.
var errSilent = errors.New("the provider sent nothing for too long")

// Transport sends single requests. It never repeats one and follows no
// redirect. Safe for concurrent use.
type Transport struct {
	Client           *http.Client
	Key              Secret        // removed from every error message
	FirstByteTimeout time.Duration // from sending to the first byte of the body
	IdleTimeout      time.Duration // between two bytes of the body
	MaxResponseBytes int64
}

// WithDefaults fills in what is zero. A given Client is copied, so that refusing
// redirects does not change the caller's.
func (t Transport) WithDefaults() Transport {
	var client http.Client
	if t.Client != nil {
		client = *t.Client
	} else {
		client.Transport = newRoundTripper()
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Client = &client
	if t.FirstByteTimeout <= 0 {
		t.FirstByteTimeout = DefaultFirstByteTimeout
	}
	if t.IdleTimeout <= 0 {
		t.IdleTimeout = DefaultIdleTimeout
	}
	if t.MaxResponseBytes <= 0 {
		t.MaxResponseBytes = DefaultMaxResponseBytes
	}
	return t
}

// newRoundTripper keeps connections to the provider, takes no proxy from the
// environment and does not ask for compression, which would hold back events.
func newRoundTripper() http.RoundTripper {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		DisableCompression:  true,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		// A pooled connection that died silently is noticed before it costs a call.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// Post sends body as JSON and returns the answer once its status is known to be
// 2xx. Every error is a *loop.ModelError. The caller closes the answer.
func (t Transport) Post(parent context.Context, address string, header http.Header, body []byte) (*Response, error) {
	ctx, cancel := context.WithCancelCause(parent)
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		cancel(nil)
		return nil, &loop.ModelError{Class: loop.ErrorInternal, Message: "build request: " + err.Error()}
	}
	req.Header = header
	r := &Response{parent: parent, ctx: ctx, cancel: cancel, idle: t.IdleTimeout, left: t.MaxResponseBytes}
	r.watch = time.AfterFunc(t.FirstByteTimeout, func() { cancel(errSilent) })

	resp, err := t.Client.Do(req) //nolint:bodyclose // the Response closes it
	if err != nil {
		defer r.Close()
		return nil, t.hide(r.failure(err, connected.Load()))
	}
	r.body, r.headers, r.Rate = resp.Body, true, RateOf(resp.Header, time.Now())
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer r.Close()
		return nil, t.hide(refused(resp, r))
	}
	r.Reader = bufio.NewReader(readerFunc(r.read))
	return r, nil
}

// hide keeps the key out of what people read, should a server echo it.
func (t Transport) hide(e *loop.ModelError) *loop.ModelError {
	e.Message, e.Code = t.Key.hide(e.Message), t.Key.hide(e.Code)
	return e
}

// refused reads an answer that is not 2xx.
func refused(resp *http.Response, r *Response) *loop.ModelError {
	// What could be read of the body is enough; the status alone classifies too.
	body, _ := io.ReadAll(io.LimitReader(readerFunc(r.read), maxErrorBytes))
	fault := ParseFault(body)
	e := &loop.ModelError{
		Class: fault.Class(resp.StatusCode, resp.Header), Status: resp.StatusCode,
		Code: fault.Code, Message: fault.Message, RetryAfter: RetryAfter(resp.Header, time.Now()), Rate: r.Rate,
	}
	if e.Message == "" {
		e.Message = "the provider answered " + resp.Status
	}
	if resp.StatusCode/100 == 3 {
		e.Message = fmt.Sprintf("the provider redirects (%s): set the base URL to the final address", resp.Status)
	}
	return e
}

// Response is a 2xx answer. Reading it fails with a *loop.ModelError when the
// connection breaks, the provider falls silent, the context ends or the answer
// is too large. Not safe for concurrent use.
type Response struct {
	*bufio.Reader

	Rate loop.RateReport // what the headers said

	parent  context.Context
	ctx     context.Context
	cancel  context.CancelCauseFunc
	watch   *time.Timer
	body    io.ReadCloser
	idle    time.Duration
	left    int64
	headers bool // the status line has arrived
}

// Close releases the connection. It is safe to call more than once.
func (r *Response) Close() {
	r.watch.Stop()
	r.cancel(nil)
	if r.body != nil {
		_ = r.body.Close() // nothing was written through it, so nothing is lost
	}
}

// IsObject reports whether the body is one JSON object rather than a stream.
// Some servers ignore the wish to stream, and not all of them name the content
// type correctly, so the first byte decides. No event stream begins with "{".
func (r *Response) IsObject() (bool, error) {
	for {
		b, err := r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case b == ' ' || b == '\t' || b == '\r' || b == '\n':
			continue
		}
		return b == '{', r.UnreadByte()
	}
}

// read feeds the buffer and keeps the watch: every byte buys another IdleTimeout.
func (r *Response) read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if n > 0 {
		r.watch.Reset(r.idle)
		r.left -= int64(n)
	}
	if r.left < 0 {
		return 0, &loop.ModelError{Class: loop.ErrorMidStream, Message: "the answer is larger than loopd reads; raise the provider's max response bytes"}
	}
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, r.failure(err, true)
}

// failure classifies a broken exchange by how far it had come. Only what never
// had a connection is certain not to have started.
func (r *Response) failure(err error, connected bool) *loop.ModelError {
	class := loop.ErrorServer
	switch {
	case r.parent.Err() != nil:
		class = loop.ErrorCancelled
		if errors.Is(r.parent.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(r.parent), context.DeadlineExceeded) {
			class = loop.ErrorTimeout
		}
	case errors.Is(context.Cause(r.ctx), errSilent):
		class, err = loop.ErrorTimeout, errSilent
	case !connected:
		class = loop.ErrorNotStarted
	case isTimeout(err):
		class = loop.ErrorTimeout
	case r.headers:
		class = loop.ErrorMidStream
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the address is configuration, not part of what went wrong
	}
	return &loop.ModelError{Class: class, Message: clip(err.Error())}
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

// readerFunc makes a function an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
