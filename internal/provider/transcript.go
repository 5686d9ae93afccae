package provider

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/loopd/loopd/internal/loop"
)

// EncodeStretch writes one stretch of a transcript as wire messages: none for a
// stretch with nothing in it. The same stretch always gives the same bytes.
type EncodeStretch func(Stretch, *CallIDs) ([]json.RawMessage, error)

// encoded is what a loop.Memo keeps of a transcript: the wire form of every
// stretch that cannot grow any more, because another one follows.
type encoded struct {
	seqs  []int64 // of the messages that are in items
	items []json.RawMessage
	ids   *CallIDs
}

// EncodeTranscript writes messages with one. Given the memo of the request
// before, it encodes only what came since; unique is as for NewCallIDs. The
// items are shared with the memo: do not write into their bytes.
func EncodeTranscript(memo *loop.Memo, messages []loop.Message, unique bool, one EncodeStretch) ([]json.RawMessage, error) {
	done := remembered(memo, messages)
	if done == nil {
		done = &encoded{ids: NewCallIDs(unique)}
	}
	stretches := Stretches(messages[len(done.seqs):])
	items, ids := done.items, done.ids.clone()
	last := len(stretches) - 1
	for i, s := range stretches {
		if i == last { // it may still grow: keep what stands before it
			before := ids
			if s.Role == loop.RoleAssistant { // a user's makes no ids
				before = ids.clone()
			}
			keep(memo, &encoded{seqs: seqsOf(messages[:len(messages)-s.messages]), items: slices.Clip(items), ids: before})
		}
		wire, err := one(s, ids)
		if err != nil {
			return nil, err
		}
		items = append(items, wire...)
	}
	return items, nil
}

// remembered is what the memo holds, if it is the beginning of messages. A message
// never changes while it keeps its Seq.
func remembered(memo *loop.Memo, messages []loop.Message) *encoded {
	if memo == nil {
		return nil
	}
	done, ok := memo.Value.(*encoded)
	if !ok || len(done.seqs) > len(messages) {
		return nil
	}
	for i, seq := range done.seqs {
		if seq == 0 || messages[i].Seq != seq {
			return nil
		}
	}
	if n := len(done.seqs); n > 0 && n < len(messages) && messages[n-1].Role != loop.RoleAssistant && messages[n].Role != loop.RoleAssistant {
		return nil // what followed then is gone, and the stretch goes on
	}
	return done
}

func keep(memo *loop.Memo, e *encoded) {
	if memo != nil {
		memo.Value = e
	}
}

func seqsOf(messages []loop.Message) []int64 {
	seqs := make([]int64, len(messages))
	for i, m := range messages {
		seqs[i] = m.Seq
	}
	return seqs
}

// Splice appends a list member to a JSON object that is already encoded, without
// reading the items again.
func Splice(object []byte, member string, items []json.RawMessage) []byte {
	size := len(object) + len(member) + 6
	for _, item := range items {
		size += len(item) + 1
	}
	var b bytes.Buffer
	b.Grow(size)
	b.Write(object[:len(object)-1])
	if len(object) > 2 {
		b.WriteByte(',')
	}
	b.WriteString(`"` + member + `":[`)
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteString("]}")
	return b.Bytes()
}

func (c *CallIDs) clone() *CallIDs {
	return &CallIDs{unique: c.unique, used: maps.Clone(c.used), wire: maps.Clone(c.wire)}
}
