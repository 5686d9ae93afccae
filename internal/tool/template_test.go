package tool

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func TestParseTemplate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]piece{
		"":                          nil,
		"plain $5":                  {{literal, "plain $5"}},
		"{a}":                       {{argument, "a"}},
		"x{a.b}{c-d}y":              {{literal, "x"}, {argument, "a.b"}, {argument, "c-d"}, {literal, "y"}},
		"{{a}} {{{b}}}":             {{literal, "{a} {"}, {argument, "b"}, {literal, "}"}},
		"Bearer ${secret:A_b.c-1}!": {{literal, "Bearer "}, {secret, "A_b.c-1"}, {literal, "!"}},
	} {
		got, err := parseTemplate(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(piece{})); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]error{
		"{": errBrace, "}": errBrace, "{}": errBrace, "{ a }": errBrace, "{a": errBrace, "{a{b}}": errBrace, "query { a }": errBrace, `{"a":1}`: errBrace,
		"${a}": errSecret, "${secret:}": errSecret, "${secret:a b}": errSecret, "${": errSecret,
	} {
		if _, err := parseTemplate(text); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

const manyArgs = `{"id":"W 1","big":12345678901234567890.10,"on":true,"gone":null,"list":["a",2,true],"deep":{"b":[1]},"text":"x \"y\" <z>","ref":"${secret:KEY} {id}"}`

// Every way in which arguments and secrets get into a request.
func TestTemplatesOnTheWire(t *testing.T) {
	t.Parallel()
	type wire struct{ URI, Type, Body string }
	const form = "application/x-www-form-urlencoded"
	for name, test := range map[string]struct {
		spec loop.HTTPSpec
		args string
		want wire
	}{
		"query": {
			loop.HTTPSpec{Method: "GET", URL: "/o/{id}?v=1", Query: map[string]string{
				"q": "{text}", "n": "{big}", "l": "{list}", "d": "{deep}", "no": "{gone}", "neither": "{absent}", "half": "a-{on}-{absent}",
				"both": "{on}/{big}", "key": "${secret:KEY}", "fixed": "a{{b}}", "ref": "{ref}",
			}}, manyArgs,
			wire{"/o/W%201?both=true%2F12345678901234567890.10&d=%7B%22b%22%3A%5B1%5D%7D&fixed=a%7Bb%7D&key=k%22ey-5ecret&l=a&l=2&l=true&n=12345678901234567890.10&q=x+%22y%22+%3Cz%3E&ref=%24%7Bsecret%3AKEY%7D+%7Bid%7D&v=1", "", ""},
		},
		"empty query sends nothing": {loop.HTTPSpec{Method: "GET", URL: "/", Query: map[string]string{}}, manyArgs, wire{"/", "", ""}},
		"no query sends what nothing names": {
			loop.HTTPSpec{Method: "DELETE", URL: "/o/{id}?tenant=acme", Headers: map[string]string{"X-On": "{on}"}}, `{"id":1,"on":true,"tenant":"evil","list":[],"a":[{}]}`,
			wire{"/o/1?a=%5B%7B%7D%5D&tenant=acme", "", ""},
		},
		"json is what the model wrote": {loop.HTTPSpec{Method: "POST", URL: "/{id}", Query: map[string]string{"on": "{on}"}}, manyArgs, wire{"/W%201?on=true", "application/json", manyArgs}},
		"none":                         {loop.HTTPSpec{Method: "POST", URL: "/{id}", Body: "none"}, `{"id":1,"force":true}`, wire{"/1?force=true", "", ""}},
		"form": {
			loop.HTTPSpec{Method: "PUT", URL: "/{id}", Query: map[string]string{"on": "{on}"}, Body: "form"}, `{"id":1,"on":true,"list":["a","b&c"],"deep":{"x":1},"gone":null}`,
			wire{"/1?on=true", form, "deep=%7B%22x%22%3A1%7D&list=a&list=b%26c"},
		},
		"form of another shape": {
			loop.HTTPSpec{Method: "POST", URL: "/", Body: "form", BodyTemplate: json.RawMessage(`{"order[id]":"{id}","key":"${secret:KEY}","absent":"{absent}"}`)}, manyArgs,
			wire{"/", form, "key=k%22ey-5ecret&order%5Bid%5D=W+1"},
		},
		"body of another shape": {
			loop.HTTPSpec{Method: "PATCH", URL: "/", BodyTemplate: json.RawMessage(`{"z":{"n":"{big}","none":"{absent}","null":"{gone}"},"a":["{list}","{absent}",{"k":"${secret:KEY}"}],"deep":"{deep}",
				"said":"{id}: {text} {{on}}","half":"{id}{absent}","num":1.50,"yes":true,"nil":null,"ref":"{ref}"}`)}, manyArgs,
			wire{"/", "application/json", `{"z":{"n":12345678901234567890.10,"null":null},"a":[["a",2,true],{"k":"k\"ey-5ecret"}],"deep":{"b":[1]},` +
				`"said":"W 1: x \"y\" <z> {on}","num":1.50,"yes":true,"nil":null,"ref":"${secret:KEY} {id}"}`},
		},
		"body that is an argument":  {loop.HTTPSpec{Method: "POST", URL: "/", BodyTemplate: json.RawMessage(`"{list}"`)}, manyArgs, wire{"/", "application/json", `["a",2,true]`}},
		"body that is absent":       {loop.HTTPSpec{Method: "POST", URL: "/", BodyTemplate: json.RawMessage(`"{absent}"`)}, manyArgs, wire{"/", "", ""}},
		"a DELETE that wants one":   {loop.HTTPSpec{Method: "DELETE", URL: "/", BodyTemplate: json.RawMessage(`{"id":"{id}"}`)}, manyArgs, wire{"/", "application/json", `{"id":"W 1"}`}},
		"type that the owner wants": {loop.HTTPSpec{Method: "POST", URL: "/", Headers: map[string]string{"content-type": "application/x+json"}}, `{}`, wire{"/", "application/x+json", `{}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, effect := range []loop.Effect{readOnly, irreversible} {
				var got wire
				at, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					got = wire{r.RequestURI, r.Header.Get("Content-Type"), string(body)}
				})
				spec := test.spec
				spec.URL = at + spec.URL
				req := request(effect, "", "", test.args)
				req.Spec.HTTP = &spec
				if reply := localRunner().Call(t.Context(), req); reply.Outcome != loop.OutcomeOK {
					t.Fatalf("%+v", reply)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestHeadersFromArguments(t *testing.T) {
	t.Parallel()
	var header http.Header
	at, deliveries := serve(t, func(_ http.ResponseWriter, r *http.Request) { header = r.Header })
	req := request(irreversible, "POST", at, `{"tag":"a b","n":1,"evil":"x\r\nLoopd-Run-Id: other","nul":"\u0000","deep":{}}`)
	req.Spec.HTTP.Headers = map[string]string{"If-Match": `"{tag}-{n}"`, "X-Absent": "{absent}", "X-Key": "${secret:KEY}/{tag}"}
	if reply := localRunner().Call(t.Context(), req); reply.Outcome != loop.OutcomeOK {
		t.Fatalf("%+v", reply)
	}
	if _, sent := header["X-Absent"]; sent || header.Get("If-Match") != `"a b-1"` || header.Get("X-Key") != `k"ey-5ecret/a b` {
		t.Errorf("headers %v", header)
	}
	for name, want := range map[string]string{
		"{evil}": "arguments.evil: holds a line break", "{nul}": "arguments.nul: holds a line break", "{deep}": "arguments.deep: expected a string, number or boolean",
	} {
		req.Spec.HTTP.Headers = map[string]string{"X-Tag": name}
		if reply := localRunner().Call(t.Context(), req); reply.Outcome != loop.OutcomeInvalidArgs || !strings.Contains(told(t, reply).Message, want) {
			t.Errorf("%s: %+v", name, reply)
		}
	}
	if deliveries() != 1 {
		t.Errorf("%d deliveries", deliveries())
	}
}

// An argument stays where the template put it, whatever it is.
func TestPathsDoNotClimb(t *testing.T) {
	t.Parallel()
	var got string
	at, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.RequestURI })
	for args, want := range map[string]string{
		`{"a":"a/b","b":"?x#y"}`:          "/r/a%2Fb%3Fx%23y/end",
		`{"a":"..","b":"x"}`:              "arguments.a: \"..\" cannot be part",
		`{"a":"a/../../admin","b":"x"}`:   "arguments.a: \"a/../../admin\" cannot be part",
		`{"a":"..\\x","b":"x"}`:           "arguments.a: \"..\\\\x\" cannot be part",
		`{"a":"%2e%2e","b":"x"}`:          "/r/%252e%252ex/end",
		`{"a":".","b":"."}`:               "arguments.a: \".\" cannot be part",
		`{"b":"x"}`:                       "arguments.a: required, but missing",
		`{"a":null}`:                      "arguments.a: required, but missing; it is part of the tool's URL\narguments.b: required",
		`{"a":"x","b":[1]}`:               "arguments.b: expected a string, number or boolean, because it becomes part of a text, got array",
		`{"a":"{b}","b":"${secret:KEY}"}`: "/r/%7Bb%7D$%7Bsecret:KEY%7D/end",
	} {
		got = ""
		reply := localRunner().Call(t.Context(), request(irreversible, "POST", at+"/r/{a}{b}/end", args))
		if reply.Outcome == loop.OutcomeInvalidArgs {
			got = told(t, reply).Message
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	reply := localRunner().Call(t.Context(), request(irreversible, "POST", at+"/r/.{a}", `{"a":"x/."}`))
	if reply.Outcome != loop.OutcomeInvalidArgs {
		t.Errorf("a hidden dot: %+v", reply)
	}
}

// A secret that the tool repeats is not shown, in whatever form, nor is its
// beginning at the place of a cut.
func TestSecretsAreNotEchoed(t *testing.T) {
	t.Parallel()
	const value = `pa/ss "wörd"&<x>`
	for name, echo := range map[string]string{
		"as it is": value, "JSON": `{"k":"pa/ss \"wörd\"&<x>"}`, "escaped JSON": `{"k":"pa/ss \"wörd\"\u0026\u003cx\u003e"}`,
		"query": "?k=pa%2Fss+%22w%C3%B6rd%22%26%3Cx%3E", "path": "/pa%2Fss%20%22w%C3%B6rd%22&%3Cx%3E/", "twice": value + value,
	} {
		for _, result := range []string{"", "/k"} {
			for _, status := range []int{200, 418, 500} {
				at, _ := serve(t, answer(status, echo))
				r := New(Config{AllowPrivate: true, Secrets: func(string) (string, bool) { return value, true }})
				req := request(sideEffect, "POST", at, `{}`)
				req.Spec.HTTP.Result = result
				req.Spec.HTTP.BodyTemplate = json.RawMessage(`{"k":"${secret:KEY}"}`)
				reply := r.Call(t.Context(), req)
				if strings.Contains(reply.Content, "pa/ss") || strings.Contains(reply.Content, "pa%2Fss") || !strings.Contains(reply.Content, "[secret:KEY]") {
					t.Errorf("%s, %d: %s", name, status, reply.Content)
				}
			}
		}
	}
	at, _ := serve(t, answer(200, "0123456789"+value))
	r := New(Config{AllowPrivate: true, MaxReadBytes: 15, Secrets: func(string) (string, bool) { return value, true }})
	req := request(readOnly, "POST", at, `{}`)
	req.Spec.HTTP.Headers = map[string]string{"A": "${secret:KEY}"}
	if reply := r.Call(t.Context(), req); reply.Content != "0123456789" || !reply.Cut {
		t.Errorf("cut: %+v", reply)
	}
}

func TestRedactTakesTheLongestFirst(t *testing.T) {
	t.Parallel()
	s := secrets{"SHORT": "abc", "LONG": "abcdef", "EMPTY": ""}
	if got := s.redact("abcdef abc abcde"); got != "[secret:LONG] [secret:SHORT] [secret:SHORT]de" {
		t.Errorf("%q", got)
	}
	if got := secrets(maps.Clone(map[string]string{})).redact("abc"); got != "abc" {
		t.Errorf("%q", got)
	}
}
