package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

const (
	// maxArgs is how much of a call's arguments conditions read, in bytes: four
	// times what a model answers at most unless told otherwise.
	maxArgs = 64 << 10
	// maxDepth is how deep arguments may nest, as everywhere in loopd.
	maxDepth = 64
)

// decodeArgs reads a call's arguments strictly: one JSON object, valid UTF-8, no
// key twice, since the tool may read another of the two. Empty text is {}.
func decodeArgs(text string) (object, error) {
	switch {
	case len(text) > maxArgs:
		return object{}, fmt.Errorf("the arguments have %d bytes: conditions read at most %d", len(text), maxArgs)
	case strings.TrimSpace(text) == "":
		text = "{}"
	}
	value, err := decodeText(text)
	if err != nil {
		return object{}, fmt.Errorf("the arguments are %w", err)
	}
	args, ok := value.(object)
	if !ok {
		return object{}, errors.New("the arguments are not a JSON object")
	}
	return args, nil
}

// decodeText reads a text that is one JSON value, as strictly. Its error says what
// the text is instead.
func decodeText(text string) (ref.Val, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	value, err := decodeValue(d, 0)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("not plain JSON: the text ends too early")
	case err != nil:
		return nil, fmt.Errorf("not plain JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not plain JSON: more text follows the value")
	}
	return value, nil
}

// decodeValue reads the next value as what CEL computes with.
func decodeValue(d *json.Decoder, depth int) (ref.Val, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
		}
		if token == '{' {
			return decodeObject(d, depth+1)
		}
		return decodeArray(d, depth+1)
	case json.Number:
		return number(token.String()), nil
	case string:
		return types.String(token), nil
	case bool:
		return types.Bool(token), nil
	}
	return types.NullValue, nil
}

func decodeObject(d *json.Decoder, depth int) (ref.Val, error) {
	members := map[string]any{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := token.(string) // the decoder refuses any other kind of key
		if _, twice := members[key]; twice {
			return nil, fmt.Errorf("the key %q is given twice", excerpt(key, 100))
		}
		if members[key], err = decodeValue(d, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object{types.NewStringInterfaceMap(types.DefaultTypeAdapter, members)}, err
}

func decodeArray(d *json.Decoder, depth int) (ref.Val, error) {
	items := []ref.Val{}
	for d.More() {
		item, err := decodeValue(d, depth)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := d.Token()
	return types.NewRefValList(types.DefaultTypeAdapter, items), err
}

// number is exact for whole numbers, and the nearest double for others.
func number(text string) ref.Val {
	if strings.ContainsAny(text, ".eE") {
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return types.Double(f)
		}
		return beyond(text)
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(i)
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return types.Uint(u)
	}
	return beyond(text)
}

// object is a map whose keys are visited in sorted order: Go's own order is
// another each time, and a condition may depend on it.
type object struct{ traits.Mapper }

// Iterator visits the keys.
func (o object) Iterator() traits.Iterator {
	var keys []string
	for it := o.Mapper.Iterator(); it.HasNext() == types.True; {
		if key, ok := it.Next().(types.String); ok {
			keys = append(keys, string(key))
		}
	}
	slices.Sort(keys)
	return types.NewStringList(types.DefaultTypeAdapter, keys).Iterator()
}

// beyond is a number, as it was written, that no type of CEL can hold. It is
// equal to the same text only, and nothing can be computed with it.
type beyond string

// beyondType has no traits: CEL finds no function that takes it.
const beyondType = "number beyond 64 bits"

// ConvertToNative refuses.
func (b beyond) ConvertToNative(reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s is a %s", excerpt(string(b), 40), beyondType)
}

// ConvertToType refuses all but its own type's name.
func (b beyond) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return types.NewTypeTypeWithParam(types.NewOpaqueType(beyondType))
	}
	return types.NewErr("%s is a %s", excerpt(string(b), 40), beyondType)
}

// Equal compares the texts.
func (b beyond) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(b)) }

// Type says what it is.
func (b beyond) Type() ref.Type { return types.NewOpaqueType(beyondType) }

// Value is the text.
func (b beyond) Value() any { return string(b) }
