package tool

import (
	"encoding/json"
	"strings"
)

// plain reads a value out of a text that is valid JSON. It is not ok if there is something
// in it that decode refuses, which then finds the words for it: a model is told where its
// fault is, but hardly ever makes one, and to keep track of places takes most of the time.
type plain struct {
	text string
	at   int
}

func (p *plain) value(depth int) (value any, ok bool) {
	if depth > maxDepth { // deeper than any container may be
		return nil, false
	}
	switch p.next() {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.string()
	case 't':
		p.at += len("true")
		return true, true
	case 'f':
		p.at += len("false")
		return false, true
	case 'n':
		p.at += len("null")
		return nil, true
	}
	from := p.at
	for p.at < len(p.text) && strings.IndexByte("+-.eE0123456789", p.text[p.at]) >= 0 {
		p.at++
	}
	number := json.Number(p.text[from:p.at])
	return number, checkNumber("", number) == nil
}

func (p *plain) object(depth int) (any, bool) {
	members := map[string]any{}
	for p.at++; p.next() != '}'; {
		key, ok := p.string()
		_, twice := members[key]
		if !ok || twice {
			return nil, false
		}
		p.next()
		p.at++ // the colon
		if members[key], ok = p.value(depth + 1); !ok {
			return nil, false
		}
		p.comma()
	}
	p.at++
	return members, depth < maxDepth
}

func (p *plain) array(depth int) (any, bool) {
	items := []any{}
	for p.at++; p.next() != ']'; {
		item, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		items = append(items, item)
		p.comma()
	}
	p.at++
	return items, depth < maxDepth
}

// string reads a string. One without escapes is a part of the text.
func (p *plain) string() (text string, ok bool) {
	from, escaped := p.at, false
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	if !escaped {
		return p.text[from+1 : p.at-1], true
	}
	err := json.Unmarshal([]byte(p.text[from:p.at]), &text)
	return text, err == nil
}

// comma skips one, if there is one: the text is valid, so that another value follows then.
func (p *plain) comma() {
	if p.next() == ',' {
		p.at++
		p.next()
	}
}

// next skips white space and is the byte behind it.
func (p *plain) next() byte {
	for strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
	return p.text[p.at]
}
