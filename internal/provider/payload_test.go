package provider

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
)

// A request keeps its body until it is sent, and what could be sent again until the answer
// has begun: then thousands may wait for a model without holding what they asked.
func TestABodyIsLetGoOf(t *testing.T) {
	t.Parallel()
	body := []byte("a long transcript")
	p := &payload{Reader: bytes.NewReader(body)}
	req := httptest.NewRequest(http.MethodPost, "/", p.Reader)
	p.keep(req, body)

	p.wrote(httptrace.WroteRequestInfo{Err: errors.New("broken")})
	if p.Len() != len(body) {
		t.Errorf("after a write that failed there are %d bytes to send, want %d", p.Len(), len(body))
	}
	p.wrote(httptrace.WroteRequestInfo{})
	if p.Size() != 0 {
		t.Errorf("once it is written, %d bytes are kept", p.Size())
	}
	again, err := req.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(again); err != nil || !bytes.Equal(got, body) {
		t.Errorf("sent again: %q, %v", got, err)
	}
	p.forget()
	if _, err := req.GetBody(); !errors.Is(err, errForgotten) || p.again.Load() != nil {
		t.Errorf("once the answer has begun: %v", err)
	}
}
