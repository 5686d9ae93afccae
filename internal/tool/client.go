package tool

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	// connectTimeout bounds dial and TLS each: a tool that does not take a
	// connection in this time is down, and nothing was sent.
	connectTimeout = 3 * time.Second
	maxRedirects   = 3
	maxHeaderBytes = 64 << 10
	idlePerHost    = 16 // a few runs' worth of parallel calls to one tool server
)

// transport dials through d, and nothing else.
func transport(d *dialer) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // a proxy of the environment would dial for us, past the guardian
		DialContext:            d.dial,
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
}

// repeatableClient keeps connections and follows a few redirects. The
// transport's own repetitions do no harm to the calls it carries.
func repeatableClient(d *dialer) *http.Client {
	t := transport(d)
	t.ForceAttemptHTTP2 = true
	t.MaxIdleConnsPerHost = idlePerHost
	t.IdleConnTimeout = time.Minute
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}
}

// singleClient sends a request once or not at all: a connection that was never
// used before is one that net/http never repeats a request on, and HTTP/2, which
// repeats after GOAWAY and refused streams, is off.
func singleClient(d *dialer) *http.Client {
	t := transport(d)
	t.DisableKeepAlives = true
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// checkRedirect follows redirects that keep the method and do not leave TLS.
// Once a redirect has left the tool's own host, everything that was configured
// for that host stays behind: net/http itself drops only Authorization and cookies.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if req.Method != first.Method {
		return http.ErrUseLastResponse
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: more than %d", errRedirect, maxRedirects)
	}
	if first.URL.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("%w: from https to %s", errRedirect, req.URL.Scheme)
	}
	if req.URL.User != nil {
		return fmt.Errorf("%w: to an address with credentials in it", errRedirect)
	}
	for _, hop := range append(via[1:len(via):len(via)], req) {
		if hop.URL.Host != first.URL.Host {
			req.Header = publicHeaders(req.Header)
			return nil
		}
	}
	return nil
}

// publicHeaders are those that say nothing about the run or its credentials.
func publicHeaders(h http.Header) http.Header {
	kept := http.Header{}
	for _, name := range []string{"Accept", "Content-Type", "User-Agent"} {
		if v := h.Values(name); len(v) > 0 {
			kept[name] = v
		}
	}
	return kept
}

// errRedirect marks a redirect that loopd does not follow.
var errRedirect = errors.New("redirect refused")
