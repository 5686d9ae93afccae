package provider_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		want       []string
	}{
		{"plain", "event: x\ndata: 1\nid: 7\n\ndata:2\n\n", []string{"1", "2"}},
		{"carriage returns", "data: 1\r\n\r\ndata: 2\r\n\r\n", []string{"1", "2"}},
		{"comments and byte order mark", "\uFEFFdata: 1\n\n: wait\n\n:\n\n", []string{"1"}},
		{"many lines", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"leading space", " data: 1\n\n", []string{"1"}},
		{"no blank line at the end", "data: 1\n\ndata: [DONE]", []string{"1", "[DONE]"}},
		{"event without data", "event: ping\n\ndata: 1\n\n", []string{"1"}},
		{"other field", "database: 1\n\n", nil},
		{"invalid UTF-8", "data: a\xffb\n\n", []string{"a\uFFFDb"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			events := provider.NewEvents(bufio.NewReader(strings.NewReader(c.body)))
			var got []string
			for {
				data, err := events.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("Next: %v", err)
				}
				got = append(got, string(data))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEventsAreBounded: neither one line nor many may fill the memory.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	line := "data: " + strings.Repeat("x", 1<<20) + "\n"
	for _, c := range []struct {
		name, body string
		class      loop.ErrorClass // "" = one event and the end
	}{
		{"7 MiB in a line", "data: " + strings.Repeat("x", 7<<20) + "\n\n", ""},
		{"7 MiB in lines", strings.Repeat(line, 7) + "\n", ""},
		{"9 MiB in a line", "data: " + strings.Repeat("x", 9<<20) + "\n\n", loop.ErrorInternal},
		{"9 MiB in lines", strings.Repeat(line, 9) + "\n", loop.ErrorInternal},
		{"9 MiB in a comment", ":" + strings.Repeat("x", 9<<20) + "\n\n", loop.ErrorInternal},
	} {
		events := provider.NewEvents(bufio.NewReader(strings.NewReader(c.body)))
		data, err := events.Next()
		if c.class == "" && (err != nil || len(data) < 7<<20) || c.class != "" && classOf(err) != c.class {
			t.Errorf("%s: %d bytes, %v", c.name, len(data), err)
		}
	}
}

// FuzzEvents: no body makes the reader loop, panic or return invalid text.
func FuzzEvents(f *testing.F) {
	f.Add("data: 1\n\n: x\r\ndata\n\ndata:\xff")
	f.Fuzz(func(t *testing.T, body string) {
		events := provider.NewEvents(bufio.NewReader(strings.NewReader(body)))
		for range len(body) + 1 {
			data, err := events.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil || !utf8.Valid(data) {
				t.Fatalf("event %q, error %v", data, err)
			}
		}
		t.Fatal("more events than bytes")
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		seconds, millis string
		want            time.Duration
	}{
		{"", "", 0},
		{"16", "", 16 * time.Second},
		{"1.5", "", 1500 * time.Millisecond},
		{"1", "0", time.Second},
		{"", "250", 250 * time.Millisecond},
		{"-5", "", 0},
		{"1e300", "", 24 * time.Hour},
		{"NaN", "Inf", 24 * time.Hour},
		{"soon", "", 0},
		{" 3 ", "", 3 * time.Second},
		{"0.25", "", 250 * time.Millisecond},
		{"-0.5", "", 0},
		{"9999999", "", 24 * time.Hour},
		{"1 2", "", 0},
		{"", "-250", 0},
		{"", "1500.5", 1500500 * time.Microsecond},
		{"2", "500", 2 * time.Second},
		{"Mon, 30 Nov 2026 12:00:30 GMT", "45000", 45 * time.Second},
		{"Monday, 30-Nov-26 12:00:30 GMT", "", 30 * time.Second},
		{"Mon Nov 30 12:00:30 2026", "", 30 * time.Second},
		{"Mon, 30 Nov 2099 12:00:30 GMT", "", 24 * time.Hour},
		{"2026-11-30T12:00:30Z", "", 0},
		{"Mon, 30 Nov 2026 12:00:30 GMT", "", 30 * time.Second},
		{"Mon, 30 Nov 2026 11:00:00 GMT", "", 0},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.seconds)
		h.Set("Retry-After-Ms", c.millis)
		if got := provider.RetryAfter(h, now); got != c.want {
			t.Errorf("%q and %q: got %s, want %s", c.seconds, c.millis, got, c.want)
		}
	}
}

func TestParseFault(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][2]string{ // code, message
		``:                          {"", ""},
		`<html>Bad gateway</html>`:  {"", ""},
		`no healthy upstream`:       {"", "no healthy upstream"},
		`{"error":"bad key"}`:       {"", "bad key"},
		`{"detail":"Unauthorized"}`: {"", "Unauthorized"},
		`{"error":{"code":429,"message":"slow"}}`:                         {"429", "slow"},
		`{"error":{"type":"t","code":"c","message":"m"}}`:                 {"c", "m"},
		`{"error":{"type":"t","code":null,"message":"m"}}`:                {"t", "m"},
		`{"type":"error","error":{"type":"overloaded","message":"m"}}`:    {"overloaded", "m"},
		`{"code":"c","error":"m"}`:                                        {"c", "m"},
		`[{"error":{"code":400,"message":"m"}}]`:                          {"400", "m"},
		`{"message":"m","type":"t"}`:                                      {"t", "m"},
		`{"error":{"message":"` + strings.Repeat("é", 400) + `"}}`:        {"", strings.Repeat("é", 250) + "..."},
		"{\"error\":{\"message\":\"a\xffb\"}}":                            {"", "a\uFFFDb"},
		`{"error":{"message":{"nested":true},"type":["odd"],"code":1.5}}`: {`["odd"]`, `{"nested":true}`},
	} {
		f := provider.ParseFault([]byte(body))
		if got := [2]string{f.Code, f.Message}; got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// TestClass: what answers say against their status. Recordings of each provider
// have the common cases.
func TestClass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		want   loop.ErrorClass
	}{
		{429, `{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":"You exceeded your current quota"}}`, loop.ErrorQuota},
		{429, `{"error":{"type":"exceeded_current_quota_error","message":"suspended due to insufficient balance"}}`, loop.ErrorQuota},
		{429, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota"}}`, loop.ErrorThrottle},
		{429, `{"error":{"code":"429","message":"exceeded call rate limit of your current quota tier"}}`, loop.ErrorThrottle},
		{429, `{"error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}`, loop.ErrorQuota},
		{400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API"}}`, loop.ErrorQuota},
		{402, ``, loop.ErrorQuota},
		{400, `{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}}`, loop.ErrorContext},
		{400, `{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"API key not valid. Please pass a valid API key."}}`, loop.ErrorAuth},
		{500, `{"error":{"message":"context window"}}`, loop.ErrorServer},
		{400, `{"error":{"code":"tool_use_failed","message":"x"}}`, loop.ErrorServer},
		{413, `{"error":{"type":"request_too_large","message":"x"}}`, loop.ErrorRequest},
		{302, ``, loop.ErrorRequest},
		{418, ``, loop.ErrorRequest},
		{599, ``, loop.ErrorServer},
		{700, ``, loop.ErrorRequest},
	} {
		if got := provider.ParseFault([]byte(c.body)).Class(c.status, nil); got != c.want {
			t.Errorf("%d %s: got %q, want %q", c.status, c.body, got, c.want)
		}
	}
}

// TestInBand: before an answer has begun, the type says what the status would have.
func TestInBand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body  string
		begun bool
		want  loop.ErrorClass
	}{
		{`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`, false, loop.ErrorThrottle},
		{`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`, true, loop.ErrorMidStream},
		{`{"error":{"code":503,"status":"UNAVAILABLE","message":"x"}}`, false, loop.ErrorThrottle},
		{`{"error":{"code":502,"message":"x"}}`, false, loop.ErrorServer},
		{`{"error":{"code":"context_length_exceeded","message":"x"}}`, false, loop.ErrorContext},
		{`{"error":{"code":"insufficient_quota","message":"x"}}`, false, loop.ErrorQuota},
		{`{"error":{"code":"insufficient_quota","message":"x"}}`, true, loop.ErrorMidStream},
		{`{"error":{"type":"never heard of","message":"x"}}`, false, loop.ErrorMidStream},
	} {
		if got := provider.ParseFault([]byte(c.body)).InBand(c.begun); got.Class != c.want {
			t.Errorf("%s, begun %v: got %q, want %q", c.body, c.begun, got.Class, c.want)
		}
	}
}

// TestRetryInfo: Google says in the body how long to wait.
func TestRetryInfo(t *testing.T) {
	t.Parallel()
	for details, want := range map[string]time.Duration{
		`[{"@type":"type.googleapis.com/google.rpc.Help"},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.07s"}]`: 34070 * time.Millisecond,
		`[{"retryDelay":"-3s"}]`: 0, `[{"retryDelay":"soon"}]`: 0, `[{"retryDelay":5}]`: 0, `{}`: 0, `[]`: 0,
		`[{"retryDelay":"9000h"}]`: 24 * time.Hour,
	} {
		body := `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"m","details":` + details + `}}`
		if got := provider.ParseFault([]byte(body)).InBand(false); got.RetryAfter != want || got.Code != "RESOURCE_EXHAUSTED" {
			t.Errorf("%s: wait %s, code %q; want %s", details, got.RetryAfter, got.Code, want)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	calls := func(all ...string) loop.Message { // name and arguments
		var m loop.Message
		for i := 0; i < len(all); i += 2 {
			m.Parts = append(m.Parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{Name: all[i], Args: all[i+1]}})
		}
		return m
	}
	for _, c := range []struct {
		name   string
		finish loop.Finish
		m      loop.Message
		want   loop.Finish
	}{
		{"done", loop.FinishDone, calls(), loop.FinishDone},
		{"done with calls", loop.FinishDone, calls("a", "{}"), loop.FinishToolCalls},
		{"calls without calls", loop.FinishToolCalls, calls(), loop.FinishUnknown},
		{"a call without a name", loop.FinishToolCalls, calls("", "{}", "b", "{}"), loop.FinishUnknown},
		{"the last is cut", loop.FinishToolCalls, calls("a", "{}", "b", `{"x":"y`), loop.FinishTruncated},
		{"the first is cut", loop.FinishToolCalls, calls("a", `{"x":`, "b", `{}`), loop.FinishTruncated},
		{"no arguments at all", loop.FinishToolCalls, calls("a", ""), loop.FinishTruncated},
		{"arguments that are wrong, not cut", loop.FinishToolCalls, calls("a", `{"x":}`, "b", `x`), loop.FinishToolCalls},
		{"truncated", loop.FinishTruncated, calls("a", "{}"), loop.FinishTruncated},
		{"refused", loop.FinishRefused, calls("a", "{}"), loop.FinishRefused},
		{"paused", loop.FinishPaused, calls("a", `{"`), loop.FinishPaused},
	} {
		if got := provider.Settle(c.finish, c.m); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestShouldRetryHeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		header string
		want   loop.ErrorClass
	}{
		{429, "true", loop.ErrorThrottle}, {429, "false", loop.ErrorQuota},
		{500, "false", loop.ErrorRequest}, {400, "true", loop.ErrorNotStarted},
		{400, "false", loop.ErrorRequest}, {401, "true", loop.ErrorAuth},
	} {
		h := http.Header{}
		h.Set("X-Should-Retry", c.header)
		if got := provider.ParseFault(nil).Class(c.status, h); got != c.want {
			t.Errorf("%d with %s: got %q, want %q", c.status, c.header, got, c.want)
		}
	}
}

func TestCallIDs(t *testing.T) {
	t.Parallel()
	calls := func(ids ...string) []loop.ToolCall {
		var all []loop.ToolCall
		for i, id := range ids {
			all = append(all, loop.ToolCall{ID: fmt.Sprintf("c%s-%d", strings.Join(ids, ""), i), ProviderID: id})
		}
		return all
	}
	for _, c := range []struct {
		name   string
		unique bool
		calls  []loop.ToolCall
		own    bool
	}{
		{"fine", true, calls("x", "y"), true},
		{"none", true, nil, true},
		{"empty", false, calls("x", ""), false},
		{"equal", false, calls("x", "x"), false},
		{"used before", true, calls("a", "y"), false},
		{"used before where that is legal", false, calls("a", "y"), true},
	} {
		ids := provider.NewCallIDs(c.unique)
		ids.Assign([]loop.ToolCall{{ID: "c0-1", ProviderID: "a"}})
		got, own := ids.Assign(c.calls)
		if own != c.own {
			t.Errorf("%s: own is %v", c.name, own)
		}
		for i, call := range c.calls {
			want := call.ProviderID
			if !c.own {
				want = call.ID
			}
			if got[i] != want || ids.Of(loop.ToolResult{CallID: call.ID, ProviderID: call.ProviderID}) != want {
				t.Errorf("%s: call %d has id %q and its result another, want %q", c.name, i, got[i], want)
			}
		}
	}
	if got := provider.NewCallIDs(true).Of(loop.ToolResult{CallID: "c", ProviderID: "p"}); got != "p" {
		t.Errorf("a result without its call answers %q", got)
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	config := struct{ Key provider.Secret }{"sk-very-secret"}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatalf("Marshal: %v", err)
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s %q", config, config, config, config.Key, config.Key), string(encoded)} {
		if strings.Contains(text, "very") {
			t.Errorf("the secret is in %s", text)
		}
	}
}

func TestCheckBaseURL(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{ // part of the error; empty = none
		"": "", "https://api.example.com/v1": "", "http://localhost:8080": "",
		"api.example.com": "http://", "ftp://x": "http://", "https://": "host is missing",
		"https://user:pw@x": "credentials", "https://x/?a=b": "query", "http://[::1": "base URL",
	} {
		err := provider.CheckBaseURL(base)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pw@")) {
			t.Errorf("%q: got %v, want %q", base, err, want)
		}
	}
}

func TestObjectKeepsOrderAndDigits(t *testing.T) {
	t.Parallel()
	o, err := provider.ParseObject([]byte(`{"b":20000000000000000001,"a":{"z":1,"y":[]},"c":"x"}`))
	if err != nil {
		t.Fatalf("ParseObject: %v", err)
	}
	o.Set("c", json.RawMessage(`"new"`))
	o.Set("d", json.RawMessage(`null`))
	got, err := json.Marshal(o)
	if want := `{"b":20000000000000000001,"a":{"z":1,"y":[]},"c":"new","d":null}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	for _, bad := range []string{``, `[]`, `{"a":1`, `{"a"`, `null`, `{"a":}`} {
		if _, err := provider.ParseObject([]byte(bad)); err == nil {
			t.Errorf("%s passes for an object", bad)
		}
	}
}
