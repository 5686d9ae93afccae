package tool

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func TestResultPointer(t *testing.T) {
	t.Parallel()
	const body = "\uFEFF" + ` {"order":{"total":12.50,"lines":[{"sku":"a"},{"sku":"b\n\"c\""}],"a/b~c":null,"":true},"n":[]} `
	at, _ := serve(t, answer(200, body))
	for pointer, want := range map[string]string{
		"":                    strings.TrimPrefix(body, "\uFEFF"),
		"/order/total":        "12.50",
		"/order/lines/1":      `{"sku":"b\n\"c\""}`,
		"/order/lines/1/sku":  "b\n\"c\"",
		"/order/a~1b~0c":      "null",
		"/order/":             "true",
		"/n":                  "[]",
		"/order/sum":          `!nothing at /order/sum: /order is an object with "", "a/b~c", "lines", "total"`,
		"/order/lines/2/sku":  "!nothing at /order/lines/2/sku: /order/lines is an array of 2 items",
		"/order/lines/01":     "!nothing at /order/lines/01: /order/lines is an array of 2 items",
		"/order/lines/-":      "!nothing at /order/lines/-",
		"/order/total/x":      "!nothing at /order/total/x: /order/total is a number",
		"/x":                  `!nothing at /x: the whole answer is an object with "n", "order"`,
		"/order/a~1b~0c/deep": "!/order/a~1b~0c is null",
	} {
		for effect, failed := range map[loop.Effect]loop.Outcome{readOnly: loop.OutcomePermanent, idempotent: loop.OutcomeOK, irreversible: loop.OutcomeOK} {
			req := request(effect, "POST", at, `{}`)
			req.Spec.HTTP.Result = pointer
			reply := localRunner().Call(t.Context(), req)
			missing, misses := strings.CutPrefix(want, "!")
			switch {
			case !misses && (reply.Content != want || reply.Outcome != loop.OutcomeOK):
				t.Errorf("%s for %s: %+v, want %q", pointer, effect, reply, want)
			case misses && (reply.Outcome != failed || told(t, reply).Kind != "result_missing" || !strings.Contains(told(t, reply).Message, missing)):
				t.Errorf("%s for %s: %+v, want %s with %q", pointer, effect, reply, failed, missing)
			}
			if reply.Status != 200 || reply.Bytes != int64(len(body)) {
				t.Errorf("%s: %+v", pointer, reply)
			}
		}
	}
}

// What cannot be looked into is said, and the run goes on.
func TestResultPointerIntoWhatIsNoJSON(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"<html>hello</html>": "its answer is not JSON",
		"":                   "its answer is not JSON",
		`{"a":1`:             "its answer is not JSON",
		`{"a":"` + strings.Repeat("x", 99) + `"}`: "its answer is too long to be read whole",
	} {
		at, _ := serve(t, answer(200, sent))
		r := New(Config{AllowPrivate: true, MaxReadBytes: 50})
		req := request(readOnly, "GET", at, ``)
		req.Spec.HTTP.Result = "/a"
		reply := r.Call(t.Context(), req)
		if reply.Outcome != loop.OutcomePermanent || !strings.Contains(told(t, reply).Message, want) {
			t.Errorf("%q: %+v", sent, reply)
		}
	}
	many := &strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(many, `"%d%s":1,`, i, strings.Repeat("k", 500))
	}
	at, _ := serve(t, answer(200, "{"+many.String()+`"z":1}`))
	req := request(readOnly, "GET", at, ``)
	req.Spec.HTTP.Result = "/a"
	if reply := localRunner().Call(t.Context(), req); !strings.Contains(reply.Content, "and 981 more") || len(reply.Content) > 6000 {
		t.Errorf("%d bytes: %.200s", len(reply.Content), reply.Content)
	}
}

// The model sees a marked, bounded copy of whatever a tool sends.
func TestHostileContent(t *testing.T) {
	t.Parallel()
	png := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"), bytes.Repeat([]byte{0, 0xff, 0x80, 'x'}, 50)...)
	for name, test := range map[string]struct{ media, sent, pointer, want string }{
		"bidi":            {"", "pay \u202Ealice\u202C now", "", hiddenMark + "pay [U+202E]alice[U+202C] now"},
		"isolates, zero":  {"", "a\u2066b\u200Bc\u2060d\uFEFFe\u200F", "", hiddenMark + "a[U+2066]b[U+200B]c[U+2060]d[U+FEFF]e[U+200F]"},
		"joiners stay":    {"", "👩\u200D👧 می\u200Cخواهم", "", "👩\u200D👧 می\u200Cخواهم"},
		"byte order mark": {"", "\uFEFF{\"a\":1}", "", `{"a":1}`},
		"all of it":       {"", "a\x00\xff\xfe\u202Eb", "", replacedMark + hiddenMark + "a\uFFFD\uFFFD[U+202E]b"},
		"surrogate bytes": {"", "a\xed\xa0\x80b", "", replacedMark + "a\uFFFDb"},
		"own mark":        {"", "a\uFFFDb", "", "a\uFFFDb"},
		"lone surrogate":  {"", `{"a":"x\ud800y"}`, "/a", replacedMark + "x\uFFFDy"},
		"escaped mark":    {"", `{"a":"x\uFFFDy"}`, "/a", "x\uFFFDy"},
		"escaped bidi":    {"", `{"a":"x\u202ey\u0000"}`, "/a", replacedMark + hiddenMark + "x[U+202E]y\uFFFD"},
		"image": {"image/png; x=y", string(png), "", fmt.Sprintf(
			"[loopd: the answer is 216 bytes of image/png that are not UTF-8 text, so they are not shown; SHA-256 of the 216 that were read: %x]", sha256.Sum256(png))},
		"image, no type": {"not a type", string(png), "", fmt.Sprintf(
			"[loopd: the answer is 216 bytes of no known type that are not UTF-8 text, so they are not shown; SHA-256 of the 216 that were read: %x]", sha256.Sum256(png))},
		"latin-1 with few accents": {"", strings.Repeat("plain text ", 20) + "caf\xe9", "", replacedMark + strings.Repeat("plain text ", 20) + "caf\uFFFD"},
	} {
		at, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{test.media}
			_, _ = io.WriteString(w, test.sent)
		})
		for _, effect := range []loop.Effect{readOnly, irreversible} {
			req := request(effect, "POST", at, `{}`)
			req.Spec.HTTP.Result = test.pointer
			reply := localRunner().Call(t.Context(), req)
			if diff := cmp.Diff(test.want, reply.Content); diff != "" || reply.Outcome != loop.OutcomeOK || reply.Bytes != int64(len(test.sent)) {
				t.Errorf("%s: %s, %d bytes (-want +got):\n%s", name, reply.Outcome, reply.Bytes, diff)
			}
		}
	}
}

// A tool that never stops talking costs no more than what is read of it.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	const gigabyte = 1 << 30
	for name, header := range map[string]string{"announced": fmt.Sprint(gigabyte), "endless": ""} {
		written := make(chan int64, 1)
		at, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			if header != "" {
				w.Header().Set("Content-Length", header)
			}
			n := int64(0)
			for chunk := bytes.Repeat([]byte("é"), 16<<10); n < gigabyte; n += int64(len(chunk)) {
				if _, err := w.Write(chunk); err != nil {
					break
				}
			}
			written <- n
		})
		reply := New(Config{AllowPrivate: true, MaxReadBytes: 64 << 10}).Call(t.Context(), request(readOnly, "POST", at, `{}`))
		if reply.Outcome != loop.OutcomeOK || !reply.Cut || len(reply.Content) > 64<<10 || !utf8.ValidString(reply.Content) {
			t.Errorf("%s: %s, cut %v, %d bytes shown", name, reply.Outcome, reply.Cut, len(reply.Content))
		}
		if n := <-written; n > 64<<20 { // what sockets buffer is far less
			t.Errorf("%s: %d bytes were taken", name, n)
		}
	}
}
