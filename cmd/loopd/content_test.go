package main

import (
	"strings"
	"testing"
)

func TestCredentialsAreRedacted(t *testing.T) {
	t.Parallel()
	redact := redactor([]string{"hunter2", "hunter2-and-more"})
	for text, want := range map[string]string{
		"the word is hunter2-and-more":                                        "the word is [redacted]",
		"send Authorization: Bearer abc.def-ghi123":                           "send Authorization: [redacted]",
		"key sk-ant-REDACTED-0123456789abcdef here":                           "key [redacted] here",
		`{"password": "s3cret!", "user": "ann"}`:                              `{"[redacted]", "user": "ann"}`,
		`"{\"api_key\":\"0123456789\",\"n\":1}"`:                              `"{\"[redacted]\",\"n\":1}"`,
		"postgres://ann:pw1234@db/shop":                                       "[redacted]db/shop",
		"AKIAIOSFODNN7EXAMPLE and ghp_" + strings.Repeat("a", 36):             "[redacted] and [redacted]",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl":               "[redacted]",
		"-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----": "[redacted]",
		"nothing to hide: 12 tokens, https://shop.example/orders/7":           "nothing to hide: 12 tokens, https://shop.example/orders/7",
	} {
		if got := redact(text); got != want {
			t.Errorf("redact(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestContentIsCapturedOnlyIfAskedFor(t *testing.T) {
	t.Parallel()
	for value, want := range map[string][2]bool{
		"": {}, "NO_CONTENT": {}, "SPAN_ONLY": {true, false}, "event_only": {false, true}, "SPAN_AND_EVENT": {true, true},
	} {
		c := config{getenv: func(name string) string { return map[string]string{captureVariable: value}[name] }}
		got, err := c.captured()
		if err != nil || got.Spans != want[0] || got.Events != want[1] {
			t.Errorf("%q captures %+v, %v", value, got, err)
		}
	}
	c := config{getenv: func(name string) string { return map[string]string{captureVariable: "yes"}[name] }}
	if _, err := c.captured(); err == nil || !strings.Contains(err.Error(), captureVariable) {
		t.Errorf("a word that means nothing: %v", err)
	}
}
