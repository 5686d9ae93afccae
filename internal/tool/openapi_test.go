package tool

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func document(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "openapi", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// imported is what of a tool follows from its operation.
type imported struct {
	Effect       loop.Effect
	Call         string // method and URL
	Headers      map[string]string
	Query        map[string]string
	Body         string
	BodyTemplate string
	Schema       string
}

func summaries(specs []loop.ToolSpec) map[string]imported {
	out := map[string]imported{}
	for _, s := range specs {
		h := s.HTTP
		out[s.Name] = imported{s.Effect, h.Method + " " + h.URL, h.Headers, h.Query, h.Body, string(h.BodyTemplate), string(s.Schema)}
	}
	return out
}

const orderDefs = `{"Draft":{"properties":{"text":{"enum":["a","b",null],"type":["string","null"]}},"type":"object"},` +
	`"Line":{"properties":{"count":{"exclusiveMinimum":0,"type":"integer"},"gift":{"anyOf":[{"allOf":[{"$ref":"#/$defs/Draft"}]},{"type":"null"}]}},"type":"object"},` +
	`"Order":{"properties":{"id":{"readOnly":true,"type":"string"},"lines":{"items":{"$ref":"#/$defs/Line"},"type":"array"},` +
	`"note":{"examples":["fragile"],"type":["string","null"]},"order-id":{"type":"string"},"parent":{"$ref":"#/$defs/Order"}},"required":["id","lines","order-id"],"type":"object"}}`

func TestImportOpenAPI30(t *testing.T) {
	t.Parallel()
	specs, notes, err := ImportOpenAPI(document(t, "shop.yaml"), ImportOptions{Prefix: "shop_"})
	if err != nil {
		t.Fatal(err)
	}
	none, bearer := map[string]string{}, "Bearer ${secret:TOKEN}"
	want := map[string]imported{
		"shop_get_order": {
			loop.ReadOnly, "GET https://eu.shop.example/v2/orders/{order-id}", map[string]string{"Authorization": bearer, "X-Request-ID": "{X-Request-ID}"},
			map[string]string{"fields[]": "{fields}", "sort": "{sort}"}, "", "",
			`{"additionalProperties":false,"properties":{"X-Request-ID":{"type":"string"},"fields":{"items":{"enum":["total","items"],"type":"string"},"type":"array"},` +
				`"order-id":{"description":"The order.","type":"string"},"sort":{"description":"Members to sort by.\nSeveral values are separated by a comma.","type":"string"}},"required":["order-id"],"type":"object"}`,
		},
		"shop_replaceOrder_2": {
			loop.Irreversible, "PUT https://eu.shop.example/v2/orders/{order-id}", map[string]string{"Authorization": "Basic ${secret:BASIC}", "X-Api-Key": "${secret:KEY}"}, none, "json",
			`{"lines":"{lines}","note":"{note}","order-id":"{order-id_body}","parent":"{parent}"}`,
			`{"$defs":` + orderDefs + `,"additionalProperties":false,"properties":{"lines":{"items":{"$ref":"#/$defs/Line"},"type":"array"},"note":{"examples":["fragile"],"type":["string","null"]},` +
				`"order-id":{"description":"The order.","type":"string"},"order-id_body":{"type":"string"},"parent":{"$ref":"#/$defs/Order"}},"required":["lines","order-id","order-id_body"],"type":"object"}`,
		},
		"shop_delete_orders_order-id": {
			loop.Irreversible, "DELETE https://eu.shop.example/v2/orders/{order-id}", none, none, "none", "",
			`{"additionalProperties":false,"properties":{"order-id":{"description":"The order.","type":"string"}},"required":["order-id"],"type":"object"}`,
		},
		"shop_countOrders": {
			loop.ReadOnly, "HEAD https://eu.shop.example/v2/orders", none, map[string]string{"key": "${secret:QUERY_KEY}"}, "", "",
			`{"additionalProperties":false,"properties":{},"type":"object"}`,
		},
		"shop_replaceOrder": {
			loop.Irreversible, "POST https://eu.shop.example/v2/orders", none, none, "json", `"{body}"`,
			`{"$defs":` + orderDefs + `,"additionalProperties":false,"properties":{"body":{"oneOf":[{"$ref":"#/$defs/Order"},{"$ref":"#/$defs/Draft"}]}},"type":"object"}`,
		},
		"shop_login": {
			loop.Irreversible, "POST https://eu.shop.example/v2/login", map[string]string{"Cookie": "sid=${secret:SESSION}"}, none, "form", `{"scopes":"{scopes}","user name":"{user_name}"}`,
			`{"additionalProperties":false,"properties":{"scopes":{"items":{"type":"string"},"type":"array"},"user_name":{"type":"string"}},"required":["user_name"],"type":"object"}`,
		},
	}
	if diff := cmp.Diff(want, summaries(specs)); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	wantNotes := `servers: {region} of https://{region}.shop.example/v2 is its default, "eu"
the document is not quite valid: invalid components: security scheme "mutual": value "mutualTLS" of field type is for OpenAPI >=3.1
servers: the first of 2 is used, https://{region}.shop.example/v2
POST /files: not imported: its body is written as multipart/form-data; tools send JSON and forms
POST /login: body parameter user name is the argument user_name
security scheme session: set the secret SESSION to the key; it is sent in the cookie sid
HEAD /orders: of 2 ways to authenticate, the first is used
security scheme query_key: set the secret QUERY_KEY to the key; it is sent in the query key
security scheme mutual: mutualTLS is not supported; calls go out without it
POST /orders: the pattern ^(?!x) is not checked: error parsing regexp: invalid or unsupported Perl syntax: ` + "`(?!`" + `
DELETE /orders/{order-id}: its tool is named shop_delete_orders_order-id
GET /orders/{order-id}: cookie parameter theme is left out: it would travel in a cookie
GET /orders/{order-id}: header parameter Accept is left out: it follows from the body and the credentials
GET /orders/{order-id}: header parameter Idempotency-Key is left out: set by loopd itself
GET /orders/{order-id}: query parameter fields[] is the argument fields
GET /orders/{order-id}: query parameter filter is left out: it is an object in style deepObject
GET /orders/{order-id}: query parameter sort is an array that travels as one text; the argument is that text
security scheme token: set the secret TOKEN to the token; it is sent in the header Authorization
GET /orders/{order-id}: its tool is named shop_get_order
OPTIONS /orders/{order-id}: not imported: tools have no such method
PUT /orders/{order-id}: of 2 ways to write its body, application/json is used
PUT /orders/{order-id}: the pattern ^(?!x) is not checked: error parsing regexp: invalid or unsupported Perl syntax: ` + "`(?!`" + `
PUT /orders/{order-id}: member id of the body is left out: it is read-only
PUT /orders/{order-id}: body parameter order-id is the argument order-id_body
PUT /orders/{order-id}: of 2 ways to authenticate, the first is used
security scheme basic: set the secret BASIC to the base64 of user:password
security scheme key: set the secret KEY to the key; it is sent in the header X-Api-Key
PUT /orders/{order-id}: its tool is named shop_replaceOrder_2
PUT /orders/{order-id}: deprecated
GET /tags/{tags}: not imported: its path parameter tags is required, but has no text that could stand in a path`
	if diff := cmp.Diff(strings.Split(wantNotes, "\n"), notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestImportOpenAPI31(t *testing.T) {
	t.Parallel()
	specs, notes, err := ImportOpenAPI(document(t, "crm.json"), ImportOptions{BaseURL: "http://crm.internal:8080/api/"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]imported{
		"patchContact": {
			loop.Irreversible, "PATCH http://crm.internal:8080/api/contacts/{id}", map[string]string{"Content-Type": "application/merge-patch+json"}, map[string]string{"expand": "{expand}"}, "json", `{"name":"{name}","tags":"{tags}"}`,
			`{"additionalProperties":false,"properties":{"expand":{"type":"object"},"id":{"exclusiveMinimum":0,"type":"integer"},"name":{"type":["string","null"]},"tags":{"prefixItems":[{"const":"a"}],"type":"array"}},"required":["id"],"type":"object"}`,
		},
		"deleteContact": {
			loop.Irreversible, "DELETE http://crm.internal:8080/api/contacts/{id}", map[string]string{"Authorization": "Bearer ${secret:OAUTH}"}, map[string]string{}, "json", `{"reason":"{reason}"}`,
			`{"additionalProperties":false,"properties":{"id":{"exclusiveMinimum":0,"type":"integer"},"reason":{"type":"string"}},"required":["id","reason"],"type":"object"}`,
		},
	}
	if diff := cmp.Diff(want, summaries(specs)); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"webhooks.changed: not imported: loopd calls tools, it is not called by them",
		"security scheme oauth: loopd fetches no tokens; set the secret OAUTH to an access token and renew it there",
	}, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// An imported tool reaches its API as the document wants it.
func TestImportedToolsOnTheWire(t *testing.T) {
	t.Parallel()
	var got []string
	at, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = []string{r.Method, r.RequestURI, r.Header.Get("Content-Type"), r.Header.Get("Cookie"), string(body)}
	})
	secrets := func(name string) (string, bool) { return "s3cret-" + name, true }
	for tool, test := range map[string]struct {
		doc, args string
		want      []string
	}{
		"login":       {"shop.yaml", `{"user_name":"ann & bob","scopes":["a","b"]}`, []string{"POST", "/login", "application/x-www-form-urlencoded", "sid=s3cret-SESSION", "scopes=a&scopes=b&user+name=ann+%26+bob"}},
		"get_order":   {"shop.yaml", `{"order-id":"#W/1","fields":["total","items"]}`, []string{"GET", "/orders/%23W%2F1?fields%5B%5D=total&fields%5B%5D=items", "", "", ""}},
		"countOrders": {"shop.yaml", `{}`, []string{"HEAD", "/orders?key=s3cret-QUERY_KEY", "", "", ""}},
		"patchContact": {"crm.json", `{"id":7,"tags":["a",1.50],"name":null,"expand":{"x":[1]}}`,
			[]string{"PATCH", "/contacts/7?expand=%7B%22x%22%3A%5B1%5D%7D", "application/merge-patch+json", "", `{"name":null,"tags":["a",1.50]}`}},
		"deleteContact": {"crm.json", `{"id":7,"reason":"gone"}`, []string{"DELETE", "/contacts/7", "application/json", "", `{"reason":"gone"}`}},
	} {
		specs, _, err := ImportOpenAPI(document(t, test.doc), ImportOptions{BaseURL: at})
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range specs {
			if spec.Name != tool {
				continue
			}
			r := New(Config{AllowPrivate: true, Secrets: secrets})
			if problem := r.Problem(spec, test.args); problem != "" {
				t.Errorf("%s: %s", tool, problem)
			}
			req := request(spec.Effect, "", "", test.args)
			req.Spec = spec
			if reply := r.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK {
				t.Errorf("%s: %+v", tool, reply)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tool, diff)
			}
		}
	}
}

func TestImportOpenAPIRefuses(t *testing.T) {
	t.Parallel()
	head := `{"openapi":"3.0.0","info":{"title":"t","version":"1"},"paths":{"/a":{"get":{"operationId":"a","responses":{"200":{"description":"ok"}}}}}`
	for name, test := range map[string]struct{ doc, base, want string }{
		"no document":     {`hello`, "", "read the OpenAPI document"},
		"Swagger 2":       {`{"swagger":"2.0","info":{"title":"t","version":"1"},"paths":{}}`, "", "neither 3.0 nor 3.1"},
		"no server":       {head + `}`, "", "servers: none is named; give a base URL"},
		"relative server": {head + `,"servers":[{"url":"/v1"}]}`, "", `servers: "/v1" is no absolute URL; give a base URL`},
		"bad base":        {head + `}`, "shop.example", "base URL: "},
		"another file":    {strings.Replace(head, `"responses"`, `"requestBody":{"$ref":"file:///etc/passwd"},"responses"`, 1) + `}`, "https://a.example", "external reference"},
		"too large":       {strings.Repeat(" ", maxDocumentBytes) + head + `}`, "https://a.example", "more than the"},
	} {
		specs, notes, err := ImportOpenAPI([]byte(test.doc), ImportOptions{BaseURL: test.base})
		if err == nil || !strings.Contains(err.Error(), test.want) || specs != nil || notes != nil {
			t.Errorf("%s: %v with %d tools, want %q", name, err, len(specs), test.want)
		}
	}
}

// What a document leaves open, or says wrong, costs a note and no more.
func TestImportOpenAPIIsLenient(t *testing.T) {
	t.Parallel()
	doc := `{"openapi":"3.1.0","info":{"title":"t","version":"1"},"paths":{
		"/null":null,
		"/empty":{"post":{"operationId":"` + strings.Repeat("long", 20) + `","description":"` + strings.Repeat("é", 600) + `","requestBody":{"content":{"application/json":null}}}},
		"/who/{id}":{"get":{"operationId":"who"}},
		"/odd":{"get":{"operationId":"odd","security":[{"lost":[]}],"parameters":[{"name":"","in":"query","schema":true},{"name":"x","in":"query","schema":{"$ref":"#/components/schemas/Loop"}}]}}},
		"components":{"schemas":{"Loop":{"$ref":"#/components/schemas/Loop2"},"Loop2":{"type":"array","items":{"$ref":"#/components/schemas/Loop"}}}}}`
	specs, notes, err := ImportOpenAPI([]byte(doc), ImportOptions{BaseURL: "https://a.example"})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		if len(spec.Name) > 64 || len(spec.Description) > maxDescriptionBytes || !json.Valid(spec.Schema) {
			t.Errorf("%+v", spec)
		}
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{
		"GET /who/{id}: not imported: its path has {id}, which is no parameter", "its description is cut to 1024 bytes",
		"security scheme lost is not defined; calls go out without it",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no note %q in\n%s", want, all)
		}
	}
	if len(specs) != 2 {
		t.Errorf("%d tools; notes:\n%s", len(specs), all)
	}
}
