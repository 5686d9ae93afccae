package tool

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// BenchmarkCall is one call on loopback: what loopd adds to a tool's own time. A
// call that may be sent once pays for a connection of its own.
func BenchmarkCall(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"order":{"id":"W1","total":12.50,"lines":[{"sku":"a","count":1},{"sku":"b","count":2}]}}`)
	}))
	defer s.Close()
	plain := loop.HTTPSpec{Method: "POST", URL: s.URL + "/orders"}
	full := loop.HTTPSpec{
		Method: "POST", URL: s.URL + "/orders/{id}", Query: map[string]string{"notify": "{notify}"}, Headers: map[string]string{"Authorization": "Bearer ${secret:KEY}"},
		BodyTemplate: json.RawMessage(`{"order":{"id":"{id}","lines":"{lines}"}}`), Result: "/order/lines", SigningSecret: "KEY",
	}
	const args = `{"id":"W1","notify":true,"lines":[{"sku":"a","count":1}]}`
	for _, bench := range []struct {
		name   string
		effect loop.Effect
		spec   loop.HTTPSpec
	}{
		{"repeatable/plain", readOnly, plain}, {"repeatable/full", readOnly, full}, {"once/plain", irreversible, plain}, {"once/full", irreversible, full},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := localRunner()
			defer r.repeatable.CloseIdleConnections()
			req := request(bench.effect, "", "", args)
			req.Spec.HTTP = &bench.spec
			b.ReportAllocs()
			for b.Loop() {
				if reply := r.Call(b.Context(), req); reply.Outcome != loop.OutcomeOK {
					b.Fatalf("%+v", reply)
				}
			}
		})
	}
}

// BenchmarkRequest is the part of a call before anything is sent.
func BenchmarkRequest(b *testing.B) {
	r := localRunner()
	req := request(irreversible, "", "", `{"id":"W1","notify":true,"lines":[{"sku":"a","count":1}]}`)
	req.Spec.HTTP = &loop.HTTPSpec{
		Method: "POST", URL: "https://shop.example/orders/{id}", Query: map[string]string{"notify": "{notify}"}, Headers: map[string]string{"Authorization": "Bearer ${secret:KEY}"},
		BodyTemplate: json.RawMessage(`{"order":{"id":"{id}","lines":"{lines}"}}`), SigningSecret: "KEY",
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := r.newRequest(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
