package provider_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// spell is a small wire: one item for each stretch, which shows all of it and the
// ids of its calls and results.
func spell(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
	var b strings.Builder
	b.WriteString(string(s.Role))
	if s.Role == loop.RoleAssistant {
		wire, own := ids.Assign(s.Message.Calls())
		fmt.Fprintf(&b, " %s %v %v", s.Message.Text(), wire, own)
	}
	for _, r := range s.Results {
		fmt.Fprintf(&b, " %s=%s", ids.Of(r), r.Content)
	}
	fmt.Fprintf(&b, " %q %d", s.Texts, len(s.Media))
	if b.String() == `user [] 0` {
		return nil, nil
	}
	raw, err := json.Marshal(b.String())
	return []json.RawMessage{raw}, err
}

// spelled encodes with and without a memo; the two must be equal.
func spelled(t rapid.TB, memo *loop.Memo, messages []loop.Message, unique bool) []json.RawMessage {
	t.Helper()
	want, err := provider.EncodeTranscript(nil, messages, unique, spell)
	if err != nil {
		t.Fatalf("EncodeTranscript: %v", err)
	}
	got, err := provider.EncodeTranscript(memo, messages, unique, spell)
	if err != nil {
		t.Fatalf("EncodeTranscript: %v", err)
	}
	if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
		t.Fatalf("with a memo (-without +with):\n%s", diff)
	}
	return got
}

func texts(items []json.RawMessage) []string {
	all := make([]string, len(items))
	for i, item := range items {
		all[i] = string(item)
	}
	return all
}

// anyMessage draws a message; ids are few, so that they repeat.
func anyMessage(t *rapid.T, seq int64) loop.Message {
	id := rapid.SampledFrom([]string{"", "a", "b", "c"})
	m := loop.Message{Role: rapid.SampledFrom([]loop.Role{loop.RoleUser, loop.RoleUser, loop.RoleAssistant}).Draw(t, "role"), Seq: seq}
	for i := range rapid.IntRange(0, 3).Draw(t, "parts") {
		ours := fmt.Sprintf("c%d-%d", rapid.Int64Range(1, seq).Draw(t, "of"), i)
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			m.Parts = append(m.Parts, loop.TextPart(rapid.SampledFrom([]string{"", " ", "x", "y"}).Draw(t, "text")))
		case 1:
			if m.Role == loop.RoleAssistant {
				m.Parts = append(m.Parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: fmt.Sprintf("c%d-%d", seq, i), ProviderID: id.Draw(t, "id")}})
			} else {
				m.Parts = append(m.Parts, loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: ours, ProviderID: id.Draw(t, "id"), Content: "r"}})
			}
		case 2:
			m.Parts = append(m.Parts, loop.Part{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png"}})
		}
	}
	return m
}

// TestMemoChangesNothing: a transcript that grows, and now and then loses its end
// or its beginning, is encoded as if there were no memo.
func TestMemoChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		memo, unique := &loop.Memo{}, rapid.Bool().Draw(t, "unique")
		var messages []loop.Message
		var seq int64
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			switch n := len(messages); rapid.IntRange(0, 9).Draw(t, "do") {
			case 0:
				messages = messages[:rapid.IntRange(0, n).Draw(t, "end")]
			case 1:
				messages = messages[rapid.IntRange(0, n).Draw(t, "begin"):]
			case 2:
				memo.Value = rapid.SampledFrom([]any{nil, 7, "else"}).Draw(t, "foreign")
			}
			for range rapid.IntRange(0, 4).Draw(t, "more") {
				seq++
				messages = append(slices.Clip(messages), anyMessage(t, seq))
			}
			spelled(t, memo, messages, unique)
		}
	})
}

// TestMemoSavesWork: what is in the memo is not encoded again, and what is not
// known by a Seq is.
func TestMemoSavesWork(t *testing.T) {
	t.Parallel()
	talk := func(numbered bool, n int) []loop.Message {
		var messages []loop.Message
		for i := range n {
			m := user(fmt.Sprint(i))
			if i%2 == 1 {
				m.Role = loop.RoleAssistant
			}
			if numbered {
				m.Seq = int64(i + 1)
			}
			messages = append(messages, m)
		}
		return messages
	}
	for _, c := range []struct {
		name     string
		numbered bool
		want     int // stretches encoded for the second request
	}{{"numbered", true, 3}, {"not numbered", false, 11}} {
		memo, count := &loop.Memo{}, 0
		counting := func(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
			count++
			return spell(s, ids)
		}
		for _, n := range []int{9, 11} {
			count = 0
			if _, err := provider.EncodeTranscript(memo, talk(c.numbered, n), true, counting); err != nil {
				t.Fatalf("EncodeTranscript: %v", err)
			}
		}
		if count != c.want {
			t.Errorf("%s: encoded %d stretches again, want %d", c.name, count, c.want)
		}
	}
}

// TestMemoMisuse: a memo that does not fit is not used.
func TestMemoMisuse(t *testing.T) {
	t.Parallel()
	at := func(seq int64, m loop.Message) loop.Message { m.Seq = seq; return m }
	said := loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("so")}}
	first := []loop.Message{at(1, user("a")), at(2, said), at(3, user("b")), at(4, said)}
	for _, c := range []struct {
		name string
		then []loop.Message
	}{
		{"other seqs", []loop.Message{at(1, user("a")), at(5, said), at(6, user("c")), at(7, said)}},
		{"shorter", first[:2]},
		{"nothing left", nil},
		{"as long as what is kept", first[:3]},
		{"the answer is gone and the stretch goes on", []loop.Message{first[0], first[1], first[2], at(8, user("c"))}},
		{"without seqs", []loop.Message{user("x"), said, user("y"), said}},
	} {
		memo := &loop.Memo{}
		spelled(t, memo, first, true)
		spelled(t, memo, c.then, true)
		if got := spelled(t, memo, first, true); len(got) != 4 {
			t.Errorf("%s: %d items afterwards", c.name, len(got))
		}
	}
}

// TestEncodeError: a request that failed half way leaves nothing in the memo.
func TestEncodeError(t *testing.T) {
	t.Parallel()
	says := func(seq int64, id string) loop.Message {
		return loop.Message{Role: loop.RoleAssistant, Seq: seq, Parts: []loop.Part{{
			Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: "c-" + id, ProviderID: id},
		}}}
	}
	hears := func(seq int64) loop.Message { m := user("x"); m.Seq = seq; return m }
	messages := []loop.Message{hears(1), says(2, "a"), hears(3), says(4, "b"), hears(5), says(6, "c"), hears(7)}
	memo := &loop.Memo{}
	spelled(t, memo, messages[:3], true)
	failing := func(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
		if items, err := spell(s, ids); len(s.Message.Parts) == 0 || s.Message.Seq < 6 {
			return items, err
		}
		return nil, errors.New("no")
	}
	if _, err := provider.EncodeTranscript(memo, messages, true, failing); err == nil {
		t.Error("the error is lost")
	}
	spelled(t, memo, messages, true)
}

func user(text string) loop.Message {
	return loop.Message{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart(text)}}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		object string
		items  []string
		want   string
	}{
		{`{}`, nil, `{"m":[]}`},
		{`{}`, []string{`1`}, `{"m":[1]}`},
		{`{"a":{"b":1}}`, []string{`{"c": 2}`, `"x"`}, `{"a":{"b":1},"m":[{"c": 2},"x"]}`},
	} {
		var items []json.RawMessage
		for _, item := range c.items {
			items = append(items, json.RawMessage(item))
		}
		object := []byte(c.object)
		if got := provider.Splice(object, "m", items); string(got) != c.want || string(object) != c.object {
			t.Errorf("got %s from %s, want %s", got, object, c.want)
		}
	}
}
