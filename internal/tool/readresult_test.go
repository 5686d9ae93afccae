package tool

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// The parts that the model is told of, one after the other, are the whole.
func TestReadResultInParts(t *testing.T) {
	t.Parallel()
	whole := strings.Repeat("aé\u2028😀\n", 2000)
	next := regexp.MustCompile(`Read on with offset (\d+)\.\]`)
	var got strings.Builder
	for offset, parts := int64(0), 0; ; parts++ {
		if parts > 100 {
			t.Fatal("it never ends")
		}
		q, err := ParseResultQuery(fmt.Sprintf(`{"call":"c1-1","offset":%d}`, offset))
		if err != nil {
			t.Fatal(err)
		}
		reply := q.Read(whole, 1000)
		head, part, _ := strings.Cut(reply.Content, "\n")
		if reply.Outcome != loop.OutcomeOK || len(reply.Content) > 1000 || !utf8.ValidString(reply.Content) {
			t.Fatalf("%s, %d bytes: %s", reply.Outcome, len(reply.Content), head)
		}
		got.WriteString(part)
		on := next.FindStringSubmatch(head)
		if on == nil {
			break
		}
		offset, _ = strconv.ParseInt(on[1], 10, 64)
	}
	if got.String() != whole {
		t.Errorf("the parts together have %d bytes, not the %d of the whole", got.Len(), len(whole))
	}
}

func TestReadResult(t *testing.T) {
	t.Parallel()
	text := "first é line\nneedle one\nnothing\n" + strings.Repeat("x", 5000) + "needle two" + strings.Repeat("y", 5000) + "\n"
	for args, want := range map[string]string{
		`{"call":"c1-1","offset":7,"limit":5}`:  "[c1-1: bytes 6 to 11 of 10044. Read on with offset 11.]\né li",
		`{"call":"c1-1","find":"needle one"}`:   "[c1-1: 1 of 4 lines hold that text, 1 are shown. Read around one with its offset.]\nline 2, offset 14: needle one\n",
		`{"call":"c1-1","find":"NEEDLE"}`:       "[c1-1: none of its 4 lines holds that text. It has 10044 bytes.]",
		`{"call":"c1-1","offset":10044}`:        "offset 10044 is past the end",
		`{"call":"c1-1","offset":10040}`:        "[c1-1: bytes 10040 to 10044 of 10044. This is the end.]\nyyy\n",
		`{"call":"c1-1","find":"needle two"}`:   "line 4, offset 5033: xxx",
		`{"call":"c1-1","offset":6,"limit":1}`:  "[c1-1: bytes 6 to 10 of",
		`{"call":"c1-1","offset":0,"limit":99}`: "first é line",
	} {
		q, err := ParseResultQuery(args)
		if err != nil {
			t.Fatal(err)
		}
		if reply := q.Read(text, 4096); !strings.Contains(reply.Content, want) || len(reply.Content) > 4096 {
			t.Errorf("%s answers %q, want %q in it", args, reply.Content, want)
		}
	}
	if reply := (ResultQuery{Call: "c1-1"}).Read("", 4096); reply.Content != "[c1-1: bytes 0 to 0 of 0. This is the end.]\n" {
		t.Errorf("of an empty result it reads %q", reply.Content)
	}
	many := strings.Repeat("a needle in a haystack\n", 500)
	if reply := (ResultQuery{Call: "c1-1", Find: "needle"}).Read(many, 1000); len(reply.Content) > 1000 || !strings.Contains(reply.Content, "500 of 500 lines") {
		t.Errorf("%d bytes: %.100q", len(reply.Content), reply.Content)
	}
}

func TestResultQueryFaults(t *testing.T) {
	t.Parallel()
	for _, args := range []string{``, `{}`, `{"call":"c1-1","offset":-1}`, `{"call":"c1-1","limit":-1}`, `{"call":1}`} {
		if _, err := ParseResultQuery(args); err == nil {
			t.Errorf("%s is taken", args)
		}
	}
	reply := NoSuchResult("c9-9", []loop.CallHead{{Call: loop.ToolCall{ID: "c1-1", Name: "search"}, Result: "cut", Bytes: 70_000}, {Call: loop.ToolCall{ID: "c2-1"}}})
	if reply.Outcome != loop.OutcomePermanent || !strings.Contains(reply.Content, "c1-1 (search, 70000 bytes)") || strings.Contains(reply.Content, "c2-1") {
		t.Errorf("%s: %s", reply.Outcome, reply.Content)
	}
}
