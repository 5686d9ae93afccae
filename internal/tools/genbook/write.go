package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// write prints the book, one model a line, so that a renewal can be read as a
// diff.
func write(out io.Writer, book []chosen) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"version\": %s, \"date\": %s,\n \"source\": %s,\n \"providers\": [", quote(version), quote(date), quote(origin))
	for i, p := range book {
		separate(&b, i)
		fmt.Fprintf(&b, " {\"provider\": %s", quote(p.name))
		for _, list := range []struct {
			member string
			names  []string
		}{{"aliases", p.aliases}, {"fallback", p.fallback}} {
			if len(list.names) > 0 {
				fmt.Fprintf(&b, ", %q: %s", list.member, quote(list.names))
			}
		}
		b.WriteString(", \"models\": [")
		for j, m := range p.models {
			separate(&b, j)
			b.WriteString("  " + quote(m))
		}
		b.WriteString("]}")
	}
	b.WriteString("]}\n")
	if !json.Valid(b.Bytes()) {
		return fmt.Errorf("the book is not JSON")
	}
	_, err := out.Write(b.Bytes())
	return err
}

func separate(b *bytes.Buffer, i int) {
	if i > 0 {
		b.WriteByte(',')
	}
	b.WriteByte('\n')
}

// quote is v as JSON. It panics on what the program itself cannot have made.
func quote(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
