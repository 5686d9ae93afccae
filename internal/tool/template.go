package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"
)

// piece is a stretch of a template: text as it stands, an argument, or a secret.
type piece struct {
	kind pieceKind
	text string // the text, or the name of the argument or secret
}

type pieceKind int

const (
	literal pieceKind = iota
	argument
	secret
)

var (
	// argumentRef has nothing in it that would rather be JSON or a query language.
	argumentRef = regexp.MustCompile(`^\{([^{}\s/":,]+)\}`)
	secretRef   = regexp.MustCompile(`^\$\{secret:([A-Za-z0-9_.-]+)\}`)
)

var (
	errBrace  = errors.New("has a brace that is no placeholder; one is {name}, and {{ and }} stand for braces as such")
	errSecret = errors.New("a reference must read ${secret:NAME}, with letters, digits, _, . and - in the name")
)

// parseTemplate splits a text at its placeholders. What fills them is never read
// as a template again: an argument cannot ask for a secret.
func parseTemplate(text string) ([]piece, error) {
	var pieces []piece
	add := func(kind pieceKind, value string) {
		if n := len(pieces); kind == literal && n > 0 && pieces[n-1].kind == literal {
			pieces[n-1].text += value
			return
		}
		pieces = append(pieces, piece{kind, value})
	}
	for text != "" {
		size := 2
		switch i := strings.IndexAny(text, "${}"); {
		case i < 0:
			add(literal, text)
			return pieces, nil
		case i > 0:
			add(literal, text[:i])
			size = i
		case strings.HasPrefix(text, "${"):
			m := secretRef.FindStringSubmatch(text)
			if m == nil {
				return nil, errSecret
			}
			add(secret, m[1])
			size = len(m[0])
		case text[0] == '$':
			add(literal, "$")
			size = 1
		case strings.HasPrefix(text, "{{"), strings.HasPrefix(text, "}}"):
			add(literal, text[:1])
		default:
			m := argumentRef.FindStringSubmatch(text)
			if m == nil {
				return nil, errBrace
			}
			add(argument, m[1])
			size = len(m[0])
		}
		text = text[size:]
	}
	return pieces, nil
}

// arguments are the names that a template's placeholders stand for.
func arguments(pieces []piece) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, p := range pieces {
			if p.kind == argument && !yield(p.text) {
				return
			}
		}
	}
}

// has reports whether a template has a piece of a kind.
func has(pieces []piece, kind pieceKind) bool {
	for _, p := range pieces {
		if p.kind == kind {
			return true
		}
	}
	return false
}

// escapeBraces makes a text a template that stands for itself.
func escapeBraces(text string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}

// filler fills the templates of one request.
type filler struct {
	text    string                     // of the arguments: a JSON object
	members map[string]json.RawMessage // of it; nil: nothing has asked for one yet
	lookup  func(name string) (value string, ok bool)
	secrets secrets         // those that were used
	uses    int             // how often one was
	named   map[string]bool // arguments that a template stands for
}

// args are the arguments by name. Most tools take them whole, and never ask.
func (f *filler) args() map[string]json.RawMessage {
	if f.members == nil {
		f.members, _ = topLevel(f.text) // which cannot fail
	}
	return f.members
}

// escaping turns an argument's text into what may stand in its place.
type escaping func(name, value string) (string, error)

// fill puts arguments and secrets into a template. It is absent when an argument
// of it is: not given, or null.
func (f *filler) fill(pieces []piece, escape escaping) (text string, absent bool, err error) {
	var b strings.Builder
	for _, p := range pieces {
		value := p.text
		switch p.kind {
		case literal:
		case secret:
			if value, err = f.secret(p.text); err != nil {
				return "", false, err
			}
		case argument:
			f.named[p.text] = true
			raw := f.args()[p.text]
			if isAbsent(raw) {
				absent = true
				continue
			}
			if value, err = scalarArgument(p.text, raw); err != nil {
				return "", false, err
			}
			if value, err = escape(p.text, value); err != nil {
				return "", false, err
			}
		}
		b.WriteString(value)
	}
	return b.String(), absent, nil
}

// secret resolves a reference and notes that it was used.
func (f *filler) secret(name string) (string, error) {
	value, ok := f.lookup(name)
	if !ok {
		return "", fmt.Errorf("secret %q is not set in this deployment", name)
	}
	f.secrets[name] = value
	f.uses++
	return value, nil
}

// json fills a template of a JSON value. Members and items whose arguments are
// absent are left out; the rest keeps its order and its numbers their digits.
func (f *filler) json(template json.RawMessage) (value []byte, absent bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(template))
	dec.UseNumber()
	return f.jsonValue(dec)
}

func (f *filler) jsonValue(dec *json.Decoder) (value []byte, absent bool, err error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, false, fmt.Errorf("read the template of the body: %w", err)
	}
	switch tok := tok.(type) {
	case json.Delim:
		value, err = f.jsonContainer(dec, tok == '{')
		return value, false, err
	case string:
		return f.jsonString(tok)
	}
	value, err = json.Marshal(tok)
	return value, false, err
}

// jsonContainer fills an object or an array whose first token is read.
func (f *filler) jsonContainer(dec *json.Decoder, object bool) ([]byte, error) {
	ends := "[]"
	if object {
		ends = "{}"
	}
	out := []byte(ends[:1])
	for dec.More() {
		var key json.Token
		if object {
			var err error
			if key, err = dec.Token(); err != nil {
				return nil, fmt.Errorf("read the template of the body: %w", err)
			}
		}
		value, absent, err := f.jsonValue(dec)
		switch {
		case err != nil:
			return nil, err
		case absent:
			continue
		case len(out) > 1:
			out = append(out, ',')
		}
		if object {
			out = append(append(out, quote(fmt.Sprint(key), false)...), ':')
		}
		out = append(out, value...)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("read the template of the body: %w", err)
	}
	return append(out, ends[1:]...), nil
}

// jsonString fills a string. One that is exactly a placeholder becomes the
// argument as the model wrote it, null included.
func (f *filler) jsonString(text string) (value []byte, absent bool, err error) {
	pieces, err := parseTemplate(text)
	if err != nil {
		return nil, false, fmt.Errorf("read the template of the body: %w", err)
	}
	if len(pieces) == 1 && pieces[0].kind == argument {
		f.named[pieces[0].text] = true
		raw, ok := f.args()[pieces[0].text]
		return raw, !ok, nil
	}
	filled, absent, err := f.fill(pieces, asIs)
	return quote(filled, false), absent, err
}

// asIs is the escaping of places that need none.
func asIs(_, value string) (string, error) { return value, nil }

// quote is a text as JSON, with no escapes that JSON does not need unless those
// that HTML does are wanted.
func quote(text string, html bool) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	if err := enc.Encode(text); err != nil {
		panic(errors.Join(errors.New("a string is always JSON"), err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// isAbsent reports whether an argument was not given, or given as null.
func isAbsent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// scalarArgument is the text of an argument that becomes part of a text.
func scalarArgument(name string, raw json.RawMessage) (string, error) {
	text, ok := scalarText(raw)
	if !ok {
		return "", &argumentError{fmt.Sprintf("arguments.%s: expected a string, number or boolean, because it becomes part of a text, got %s", name, kindOf(raw))}
	}
	return text, nil
}

// kindOf names what a JSON text is.
func kindOf(raw json.RawMessage) string {
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '{':
		return "object"
	case raw[0] == '[':
		return "array"
	case raw[0] == '"':
		return "string"
	case raw[0] == 'n':
		return "null"
	case raw[0] == 't', raw[0] == 'f':
		return "boolean"
	}
	return "number"
}

// scalarText is the text of a string, number or boolean.
func scalarText(value json.RawMessage) (string, bool) {
	switch kindOf(value) {
	case "string":
		var s string
		err := json.Unmarshal(value, &s)
		return s, err == nil
	case "number", "boolean":
		return string(value), true
	}
	return "", false
}
