package postgres

import (
	"bytes"
	"encoding/json"
	"math"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// maxNotice is the longest payload that is sent. Postgres takes 7,999 bytes.
const maxNotice = 7900

// DeltaBatch is a piece of an answer that a model is writing.
type DeltaBatch struct {
	Run  loop.RunRef
	Call int // the model call: loop.ModelAnswered.Call of the answer
	// N numbers the batches of a call, from 1 and without gaps. A number that never
	// comes is something that was lost.
	N         int64
	Fragments []loop.Delta
}

// notice is a batch on its way.
type notice struct {
	Tenant    string     `json:"tenant"`
	Run       string     `json:"run"`
	Call      int        `json:"call"`
	N         int64      `json:"n"`
	Fragments []fragment `json:"fragments"`
}

// fragment is a loop.Delta on its way.
type fragment struct {
	Kind loop.PartKind `json:"kind"`
	Text string        `json:"text,omitempty"`
	Tool string        `json:"tool,omitempty"`
}

func (n notice) batch() DeltaBatch {
	b := DeltaBatch{Run: loop.RunRef{Tenant: n.Tenant, ID: n.Run}, Call: n.Call, N: n.N, Fragments: make([]loop.Delta, len(n.Fragments))}
	for i, f := range n.Fragments {
		b.Fragments[i] = loop.Delta(f)
	}
	return b
}

// join adds a fragment to a list: to its last one, if it goes on with that.
func join(list []fragment, f fragment) []fragment {
	if last := len(list) - 1; last >= 0 && list[last].Kind == f.Kind && f.Tool == "" {
		list[last].Text += f.Text
		return list
	}
	return append(list, f)
}

// encode makes the payloads that carry what was taken, and numbers them.
func (t taken) encode() []string {
	s := t.stream
	if t.lost {
		s.n++ // a number that nobody gets
	}
	n := notice{Tenant: s.run.Tenant, Run: s.run.ID, Call: s.call, N: math.MaxInt64}
	room := maxNotice - len(encodeJSON(n))
	var payloads []string
	send := func() {
		s.n++
		n.N = s.n
		payloads = append(payloads, string(encodeJSON(n)))
		n.Fragments = nil
	}
	used := 0
	for _, whole := range t.fragments {
		for _, f := range pieces(whole, room) {
			size := len(encodeJSON(f)) + len(",")
			if used+size > room && used > 0 {
				send()
				used = 0
			}
			n.Fragments = append(n.Fragments, f)
			used += size
		}
	}
	if used > 0 {
		send()
	}
	return payloads
}

// pieces cuts a fragment, between characters, so that each piece fits into room.
func pieces(f fragment, room int) []fragment {
	if len(f.Text) < 2 || len(encodeJSON(f))+len(",") <= room {
		return []fragment{f}
	}
	cut := len(f.Text) / 2
	for cut > 1 && !utf8.RuneStart(f.Text[cut]) {
		cut--
	}
	head, tail := f, f
	head.Text, tail.Text, tail.Tool = f.Text[:cut], f.Text[cut:], ""
	return append(pieces(head, room), pieces(tail, room)...)
}

// encodeJSON writes v without the escapes for HTML, which make code six times longer.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil // text and numbers always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
