package provider

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/loopd/loopd/internal/loop"
)

// Defaults of a Transport. Providers advise streaming for long answers; on a
// stream a minute before the first sign of life and half a minute between two
// lines are far beyond what a working one needs, unless its model thinks in
// silence: then minutes are normal, and giving up costs the whole call again. An
// answer of 128 k tokens at 40 a second takes 54 minutes, and takes 300 bytes a
// token on the most talkative wire.
const (
	DefaultFirstByteTimeout       = 60 * time.Second
	DefaultIdleTimeout            = 30 * time.Second
	DefaultCallTimeout            = time.Hour
	DefaultMaxResponseBytes int64 = 40 << 20

	thinkFactor    = 5 // a ThinkTimeout in FirstByteTimeouts
	connectTimeout = 5 * time.Second
	maxErrorBytes  = 64 << 10

	// readBuffer is what an answer is read through. The connection below has 4 KiB of its
	// own, and thousands of answers wait at once.
	readBuffer = 1 << 10
)

// Transport sends single requests. It never repeats one and follows no
// redirect. Safe for concurrent use.
//
// The headers of an answer are its first sign of life: the provider has taken
// the request, and from then on its model may think for ThinkTimeout. Chat
// Completions sends nothing at all while a model thinks, and a healthy call that
// is given up is charged, repeated, and given up again. A provider that died is
// still noticed early: by the keep-alive probes of TCP and HTTP/2.
type Transport struct {
	Client           *http.Client
	Key              Secret        // removed from every error message
	FirstByteTimeout time.Duration // from sending to the headers of the answer
	ThinkTimeout     time.Duration // from the headers to the first data, and where the model is known to think; 0 = 5 FirstByteTimeouts
	IdleTimeout      time.Duration // between two lines of data, or pieces of 4 KiB of a long one
	CallTimeout      time.Duration // for the whole call
	MaxResponseBytes int64         // of the whole answer, decompressed
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
	if t.ThinkTimeout <= 0 {
		t.ThinkTimeout = thinkFactor * t.FirstByteTimeout
	}
	if t.CallTimeout <= 0 {
		t.CallTimeout = DefaultCallTimeout
	}
	if t.MaxResponseBytes <= 0 {
		t.MaxResponseBytes = DefaultMaxResponseBytes
	}
	return t
}

// For returns the transport for one request. Some servers hold even the headers
// back until a model has thought, so a request that asks for thinking may be
// silent for ThinkTimeout from the start.
func (t Transport) For(req loop.ModelRequest) Transport {
	if e := req.Reasoning.Effort; req.Reasoning.Budget > 0 || e != "" && e != "none" {
		t.FirstByteTimeout = max(t.FirstByteTimeout, t.ThinkTimeout)
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
	sending := &payload{Reader: bytes.NewReader(body)}
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { connected.Store(true) },
		WroteRequest: sending.wrote,
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, address, sending.Reader)
	if err != nil {
		cancel(nil)
		return nil, &loop.ModelError{Class: loop.ErrorInternal, Message: "build request: " + err.Error()}
	}
	sending.keep(req, body)
	req.Header = header
	propagation.TraceContext{}.Inject(parent, propagation.HeaderCarrier(header))
	r := &Response{parent: parent, ctx: ctx, cancel: cancel, key: t.Key, left: t.MaxResponseBytes, watch: t.watch(cancel)}

	resp, err := t.Client.Do(req) //nolint:bodyclose // the Response closes it
	sending.forget()
	if err != nil {
		defer r.Close()
		return nil, t.Key.hideIn(r.failure(err, connected.Load()))
	}
	r.body, r.Rate = resp.Body, RateOf(resp.Header, time.Now())
	if e := r.open(resp); e != nil {
		defer r.Close()
		return nil, t.Key.hideIn(e)
	}
	return r, nil
}

// PostJSON sends body as JSON and reads the answer, one JSON value, into into: for
// the small calls beside generation, such as counting tokens. Every error is a
// *loop.ModelError.
func (t Transport) PostJSON(ctx context.Context, address string, header http.Header, body []byte, into any) error {
	r, err := t.Post(ctx, address, header, body)
	if err != nil {
		return err
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return t.Key.hideIn(&loop.ModelError{Class: loop.ErrorServer, Status: http.StatusOK, Message: clip("the provider's answer is not the JSON that was expected: " + err.Error()), Rate: r.Rate})
	}
	return nil
}

// open prepares the body for reading, or says why the answer is none.
func (r *Response) open(resp *http.Response) *loop.ModelError {
	var source io.Reader = resp.Body
	encoding := strings.ToLower(resp.Header.Get("Content-Encoding"))
	if encoding == "gzip" || encoding == "x-gzip" { // some proxies compress unasked
		source = &gunzip{source: resp.Body}
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return refused(resp, source, r)
	case source == resp.Body && encoding != "" && encoding != "identity":
		return &loop.ModelError{Class: unreadable.class(), Status: resp.StatusCode, Message: fmt.Sprintf("the answer is compressed (%s) although loopd did not ask for it; turn that off in the gateway", clip(encoding))}
	case kind == "text/html" || kind == "application/xhtml+xml":
		return &loop.ModelError{Class: webPage.class(), Status: resp.StatusCode, Message: "the address answers with a web page instead of a model's answer; check the base URL"}
	}
	r.source, r.headers = source, true
	r.watch.admitted()
	r.Reader = bufio.NewReaderSize((*unbuffered)(r), readBuffer)
	return nil
}

// refused reads an answer that is not 2xx. It gets one IdleTimeout for all of it.
func refused(resp *http.Response, body io.Reader, r *Response) *loop.ModelError {
	r.watch.progress()
	// What could be read of the body is enough; the status alone classifies too.
	text, _ := io.ReadAll(io.LimitReader(body, maxErrorBytes))
	fault := ParseFault(text)
	e := &loop.ModelError{
		Class: fault.Class(resp.StatusCode, resp.Header), Status: resp.StatusCode, Code: fault.Code, Message: fault.Message,
		RetryAfter: max(RetryAfter(resp.Header, time.Now()), fault.retryAfter), Rate: r.Rate,
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
	key     Secret
	watch   *watch
	body    io.ReadCloser
	source  io.Reader // the body, decompressed
	left    int64
	headers bool // a good status line has arrived
}

// Close releases the connection. It is safe to call more than once.
func (r *Response) Close() {
	r.watch.stop()
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

// Thinking says that the model is at work without writing anything: the silence
// that follows may last ThinkTimeout. Adapters call it after each event that
// promises output but brings none. If more has arrived already, there is no silence.
func (r *Response) Thinking() {
	if r.Buffered() == 0 {
		r.watch.patience()
	}
}

// Fail completes the error with which an answer ended: the usage that had been
// reported, what the headers said, and no key, should the server echo it.
func (r *Response) Fail(err error, usage loop.Usage) error {
	e, ok := errors.AsType[*loop.ModelError](WithUsage(err, usage))
	if !ok {
		return err
	}
	e.Rate = r.Rate
	return r.key.hideIn(e)
}

// unbuffered is a Response that feeds the buffer and keeps the watch.
type unbuffered Response

// Read reads from the body.
func (u *unbuffered) Read(p []byte) (int, error) {
	r := (*Response)(u)
	n, err := r.source.Read(p)
	r.watch.saw(p[:n])
	r.left -= int64(n)
	if r.left < 0 {
		return 0, &loop.ModelError{Class: unreadable.class(), Message: "the answer is larger than loopd reads; raise the provider's max response bytes if the model may write so much"}
	}
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, r.failure(err, true)
}

// failure classifies a broken exchange by how far it had come.
func (r *Response) failure(err error, connected bool) *loop.ModelError {
	why := r.broken(err, connected)
	if cause := context.Cause(r.ctx); r.parent.Err() == nil && cause != nil {
		err = cause
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the address is configuration, not part of what went wrong
	}
	return &loop.ModelError{Class: why.class(), Message: clip(err.Error())}
}

// broken says what broke an exchange. Only what never had a connection is
// certain not to have started.
func (r *Response) broken(err error, connected bool) breakage {
	switch {
	case errors.Is(r.parent.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(r.parent), context.DeadlineExceeded):
		return deadlinePassed
	case r.parent.Err() != nil:
		return givenUp
	case !connected:
		return noConnection
	case errors.Is(context.Cause(r.ctx), errEndless):
		return endless
	case errors.Is(context.Cause(r.ctx), errSilent) || isTimeout(err):
		return silent
	case r.headers:
		return brokeInside
	}
	return brokeBefore
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}
