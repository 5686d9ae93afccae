package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/loopd/loopd/internal/loop"
)

// tap keeps the body of one refusal, for what package provider does not read.
type tap struct {
	next http.RoundTripper
	body bytes.Buffer
}

// client returns a copy of c whose refusals t overhears. net/http has no type that
// makes a function a RoundTripper; promhttp, which loopd has anyway, does.
func (t *tap) client(c *http.Client) *http.Client {
	tapped := *c
	t.next = tapped.Transport
	if t.next == nil {
		t.next = http.DefaultTransport
	}
	tapped.Transport = promhttp.RoundTripperFunc(t.send)
	return &tapped
}

// send sends the request on and listens only where the answer is no 2xx.
func (t *tap) send(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode/100 != 2 {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(resp.Body, &t.body), resp.Body}
	}
	return resp, err //nolint:wrapcheck // it stands in for the transport, whose errors are classified above
}

// detail is any of the details of a google.rpc.Status; each kind has members of
// its own.
type detail struct {
	Reason     string `json:"reason"` // of an ErrorInfo
	Violations []struct {
		QuotaID string `json:"quotaId"`
	} `json:"violations"` // of a QuotaFailure
}

// details reads {"error": {"details": [...]}}, or a list with one such object,
// which is how the streaming method refuses. Whatever else comes has none.
func details(body []byte) []detail {
	type envelope struct {
		Error struct {
			Details []detail `json:"details"`
		} `json:"error"`
	}
	var list []envelope
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		return list[0].Error.Details
	}
	var one envelope
	if json.Unmarshal(body, &one) != nil {
		return nil
	}
	return one.Error.Details
}

// sharpen sets the class that only the details tell. A limit per minute and one
// per day have the same status, code and prose, and even the same advice to come
// back in seconds; the name of the quota alone tells them apart.
func sharpen(err error, body []byte) error {
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok {
		return err
	}
	for _, d := range details(body) {
		if d.Reason == "API_KEY_INVALID" && e.Class == loop.ErrorRequest {
			e.Class = loop.ErrorAuth // a wrong, missing or expired key is a 400
		}
		for _, v := range d.Violations {
			if strings.Contains(v.QuotaID, "PerDay") && e.Class == loop.ErrorThrottle {
				e.Class = loop.ErrorQuota
			}
		}
	}
	return e
}
