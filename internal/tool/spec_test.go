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
		"name:":                      func(s *loop.ToolSpec) { s.Name = "get order" },
		"effect:":                    func(s *loop.ToolSpec) { s.Effect = "SAFE" },
		"timeout:":                   func(s *loop.ToolSpec) { s.Timeout = -time.Second },
		"max_result_bytes:":          func(s *loop.ToolSpec) { s.MaxResultBytes = -1 },
		`must have "type": "object"`: func(s *loop.ToolSpec) { s.Schema = json.RawMessage(`{"type":"string"}`) },
		"only references inside":     func(s *loop.ToolSpec) { s.Schema = json.RawMessage(`{"type":"object","$ref":"http://x.example/s"}`) },
		"http: is missing":           func(s *loop.ToolSpec) { s.HTTP = nil },
		"http.method:":               func(s *loop.ToolSpec) { s.HTTP.Method = "get" },
		"must be absolute":           func(s *loop.ToolSpec) { s.HTTP.URL = "/orders" },
		"http.url: \"ftp":            func(s *loop.ToolSpec) { s.HTTP.URL = "ftp://shop.example" },
		"no user or password":        func(s *loop.ToolSpec) { s.HTTP.URL = "https://me:pw@shop.example" },
		"no fragment":                func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/#a" },
		"in the path only":           func(s *loop.ToolSpec) { s.HTTP.URL = "https://{id}.example/" },
		"http.url: {order} is not an argument of the schema":                func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/{order}" },
		"without its partner":                                               func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/{id" },
		"a header, because URLs":                                            func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/?k=${secret:K}" },
		"not a valid header name":                                           func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"a b": "c"} },
		"set by loopd itself; remove":                                       func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"idempotency-key": "c"} },
		"control characters":                                                func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"A": "b\r\nC: d"} },
		"must read ${secret:NAME}":                                          func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"A": "${SECRET}"} },
		"http.url: {id} must be required":                                   func(s *loop.ToolSpec) { s.Schema = json.RawMessage(`{"type":"object","properties":{"id":{}}}`) },
		`must have no "." or ".."`:                                          func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/a/../b" },
		"put parameters into http.query":                                    func(s *loop.ToolSpec) { s.HTTP.URL = "https://shop.example/{id}?q={id}" },
		`http.headers["X-A"]: {sku} is not an argument of the schema`:       func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"X-A": "{sku}"} },
		`http.headers["X-A"]: has a brace`:                                  func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"X-A": `{"a":1}`} },
		`http.headers["authorization"]: says who`:                           func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"authorization": "Bearer {id}"} },
		`http.headers["Cookie"]: says who`:                                  func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"Cookie": "id={id}"} },
		`http.headers["Host"]: set by loopd`:                                func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"Host": "{id}"} },
		`http.headers["content-length"]: set`:                               func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"content-length": "1"} },
		`http.headers["Webhook-Id"]: set`:                                   func(s *loop.ToolSpec) { s.HTTP.Headers = map[string]string{"Webhook-Id": "1"} },
		`http.query["q"]: {sku} is not an argument of the schema`:           func(s *loop.ToolSpec) { s.HTTP.Query = map[string]string{"q": "a{sku}"} },
		`http.query["q"]: a reference must read`:                            func(s *loop.ToolSpec) { s.HTTP.Query = map[string]string{"q": "${KEY}"} },
		`http.body: "xml" is none of`:                                       func(s *loop.ToolSpec) { s.HTTP.Body = "xml" },
		"http.body: a GET request has none":                                 func(s *loop.ToolSpec) { s.HTTP.Body = "form" },
		"http.body_template: the request has no":                            func(s *loop.ToolSpec) { s.HTTP.BodyTemplate = json.RawMessage(`{}`) },
		"http.body_template: of a form must be":                             func(s *loop.ToolSpec) { *s = posting(`"{id}"`); s.HTTP.Body = "form" },
		"http.body_template.a: given twice":                                 func(s *loop.ToolSpec) { *s = posting(`{"a":1,"a":2}`) },
		"http.body_template.a[1].b: {sku} is not an argument of the schema": func(s *loop.ToolSpec) { *s = posting(`{"a":["{id}",{"b":"x{sku}"}]}`) },
		`http.body_template["a b"]: has a brace`:                            func(s *loop.ToolSpec) { *s = posting(`{"a b":"query { x }"}`) },
		"http.result: is no JSON pointer: it must":                          func(s *loop.ToolSpec) { s.HTTP.Result = "data" },
		`http.result: is no JSON pointer: "~"`:                              func(s *loop.ToolSpec) { s.HTTP.Result = "/a~2" },
		"http.signing_secret: is the name":                                  func(s *loop.ToolSpec) { s.HTTP.SigningSecret = "${secret:A}" },
		"mcp: stands beside http":                                           func(s *loop.ToolSpec) { s.MCP = &loop.MCPSpec{} },
	} {
		spec := validSpec()
		spoil(&spec)
		if got := strings.Join(ValidateSpec(spec), "\n"); strings.Count(got, "\n") != 0 || !strings.Contains(got, want) {
			t.Errorf("problems %q, want one with %q", got, want)
		}
	}
}

// posting is a valid spec but for its body template.
func posting(template string) loop.ToolSpec {
	spec := validSpec()
	spec.HTTP.Method, spec.HTTP.BodyTemplate = "POST", json.RawMessage(template)
	return spec
}

func TestValidateSpecAccepts(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]loop.ToolSpec{
		"HEAD":               {HTTP: &loop.HTTPSpec{Method: "HEAD", URL: "https://shop.example/"}},
		"templates":          posting(`{"a":["{id}",{"b":"x {id} {{y}} ${secret:K}"}],"n":1,"{x}":null}`),
		"DELETE with a body": {HTTP: &loop.HTTPSpec{Method: "DELETE", URL: "https://shop.example/", Body: "json"}},
		"query":              {HTTP: &loop.HTTPSpec{Method: "GET", URL: "https://shop.example/", Query: map[string]string{"a": "{id}", "k": "${secret:K}"}, Result: "/a~1b/0", SigningSecret: "K"}},
		"arguments from elsewhere": {
			Schema: json.RawMessage(`{"type":"object","allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"properties":{"x":{}},"required":["x"]}}}`),
			HTTP:   &loop.HTTPSpec{Method: "GET", URL: "https://shop.example/{x}"},
		},
		"MCP":     {MCP: &loop.MCPSpec{URL: "https://mcp.example/"}},
		"client":  {Client: &loop.ClientSpec{}},
		"builtin": {Builtin: loop.BuiltinWait},
	} {
		valid := validSpec()
		spec.Name, spec.Effect = valid.Name, valid.Effect
		if spec.Schema == nil {
			spec.Schema = valid.Schema
		}
		if problems := ValidateSpec(spec); len(problems) != 0 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
