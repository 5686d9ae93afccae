package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth is how deep arrays and objects may nest. No real schema comes
	// near it; deeper values exist to exhaust parsers.
	maxDepth = 64
	// maxExponent and maxDigits bound numbers before exact arithmetic meets
	// them: 1e1000000 is short to write and long to compute with.
	maxExponent = 400
	maxDigits   = 800
)

// decode reads one JSON value strictly: valid UTF-8, no duplicate keys, bounded
// depth, nothing after it. Numbers keep their text. Faults name their place,
// beginning with root.
func decode(root, text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%s: not valid UTF-8", root)
	}
	d := decoder{json: json.NewDecoder(strings.NewReader(text))}
	d.json.UseNumber()
	value, err := d.value(root, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more text after the JSON value ends at byte %d", root, d.end)
	}
	return value, nil
}

type decoder struct {
	json *json.Decoder
	end  int64 // offset behind the last token
}

// value reads the value at path.
func (d *decoder) value(path string, depth int) (any, error) {
	tok, err := d.token(path)
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, fmt.Errorf("%s: nested more than %d levels deep", path, maxDepth)
		}
		if tok == '{' {
			return d.object(path, depth+1)
		}
		return d.array(path, depth+1)
	case json.Number:
		return tok, checkNumber(path, tok)
	}
	return tok, nil
}

func (d *decoder) object(path string, depth int) (any, error) {
	members := map[string]any{}
	for d.json.More() {
		tok, err := d.token(path)
		if err != nil {
			return nil, err
		}
		key, _ := tok.(string) // the decoder refuses any other kind of key
		if _, twice := members[key]; twice {
			return nil, fmt.Errorf("%s: given twice", joinKey(path, key))
		}
		if members[key], err = d.value(joinKey(path, key), depth); err != nil {
			return nil, err
		}
	}
	_, err := d.token(path)
	return members, err
}

func (d *decoder) array(path string, depth int) (any, error) {
	items := []any{}
	for d.json.More() {
		item, err := d.value(joinIndex(path, len(items)), depth)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := d.token(path)
	return items, err
}

// token reads the next token and words what can go wrong for a model.
func (d *decoder) token(path string) (json.Token, error) {
	tok, err := d.json.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s: not valid JSON: the text ends at byte %d, before the value is complete", path, d.json.InputOffset())
	case err != nil:
		return nil, fmt.Errorf("%s: not valid JSON at byte %d: %w", path, d.json.InputOffset(), err)
	}
	d.end = d.json.InputOffset()
	return tok, nil
}

func checkNumber(path string, n json.Number) error {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(n.String()), "e")
	exp := 0
	if exponent != "" {
		var err error
		if exp, err = strconv.Atoi(exponent); err != nil {
			exp = maxExponent + 1
		}
	}
	if len(mantissa) > maxDigits || exp > maxExponent || exp < -maxExponent {
		return fmt.Errorf("%s: number out of range", path)
	}
	return nil
}

// joinKey appends an object's key to a path: plain when it reads as a name,
// quoted otherwise.
func joinKey(path, key string) string {
	plain := key != ""
	for i, c := range key {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			plain = false
		}
	}
	if plain {
		return path + "." + key
	}
	return path + "[" + strconv.Quote(key) + "]"
}

func joinIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
