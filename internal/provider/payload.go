package provider

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// payload is the body of a request. A model may think for minutes, and its connection
// holds the request for as long; so the body is let go of as soon as it is not needed any
// more: it is as large as the transcript.
type payload struct {
	*bytes.Reader // what the connection reads; its type tells net/http that nothing blocks

	again atomic.Pointer[[]byte] // for a connection that refused the request unseen
}

// errForgotten: a request was to be sent again after its answer had begun. Nobody does so.
var errForgotten = errors.New("the body of the request is not there any more")

// keep has the request take its body from the payload, should it be sent again.
func (p *payload) keep(req *http.Request, body []byte) {
	p.again.Store(&body)
	req.GetBody = func() (io.ReadCloser, error) {
		body := p.again.Load()
		if body == nil {
			return nil, errForgotten
		}
		return io.NopCloser(bytes.NewReader(*body)), nil
	}
}

// wrote is called by the goroutine that has read the body, once it is written.
func (p *payload) wrote(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		p.Reset(nil)
	}
}

// forget lets go of the copy that could be sent again: the answer has begun.
func (p *payload) forget() { p.again.Store(nil) }
