package tool

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

func validSpec() loop.ToolSpec {
	return loop.ToolSpec{
		Name: "get_order", Effect: loop.ReadOnly,
		Schema: json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`),
		HTTP:   &loop.HTTPSpec{Method: "GET", URL: "https://shop.example/orders/{id}?full=1", Headers: map[string]string{"Authorization": "Bearer ${secret:SHOP_KEY}"}},
	}
}

func TestValidateSpec(t *testing.T) {
	t.Parallel()
	if problems := ValidateSpec(validSpec()); len(problems) != 0 {
		t.Errorf("a valid spec: %q", problems)
	}
	for want, spoil := range map[string]func(*loop.ToolSpec){
		"name:":                           func(s *loop.ToolSpec) { s.Name = "get order" },
		"effect:":                         func(s *loop.ToolSpec) { s.Effect = "SAFE" },
		"timeout:":                        func(s *loop.ToolSpec) { s.Timeout = -time.Second },
		"max_result_bytes:":               func(s *loop.ToolSpec) { s.MaxResultBytes = -1 },
		`must have "type": "object"`:      func(s *loop.ToolSpec) { s.Schema = json.RawMessage(`{"type":"string"}`) },
		"only references inside":          func(s *loop.ToolSpec) { s.Schema = json.RawMessage(`{"type":"object","$ref":"http://x.example/s"}`) },
		"http: is missing":                func(s *loop.ToolSpec) { s.HTTP = nil },
		"http.method:":                    func(s *loop.ToolSpec) { s.HTTP.Method = "get" },
		"must be absolute":                func(s *loop.ToolSpec) { s.HTTP.URL = "/orders" },
		"http.url: \"ftp":                 func(s *loop.ToolSpec) { s.HTTP.URL = "ftp://shop.example" },
		"no user or password":             func(s *loop.ToolSpec) { s.HTTP.URL = "https://me:pw@shop.example" },
		"no fragment":                     func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/#a" },
		"in the path only":                func(s *loop.ToolSpec) { s.HTTP.URL = "https://{id}.example/" },
		"required property of the schema": func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/{order}" },
		"without its partner":             func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/{id" },
		"a header, because URLs":          func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/?k=${secret:K}" },
		"not a valid header name":         func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"a b": "c"} },
		"set by loopd itself; remove":     func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"idempotency-key": "c"} },
		"control characters":              func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"A": "b\r\nC: d"} },
		"must read ${secret:NAME}":        func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"A": "${SECRET}"} },
	} {
		spec := validSpec()
		spoil(&spec)
		if got := strings.Join(ValidateSpec(spec), "\n"); strings.Count(got, "\n") != 0 || !strings.Contains(got, want) {
			t.Errorf("problems %q, want one with %q", got, want)
		}
	}
}
