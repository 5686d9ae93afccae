package tool

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the text, decode says what it says when it keeps track of places.
func TestPlainTextIsDecodedAsSlowly(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, text := range []string{
		``, ` `, `{`, `{}`, ` { } `, `[]`, "\t[\n1 ,\r2 ] ", `{"a":1}`, `{"a" : {"b":[true,false,null,"x"]} , "c":-1.5e+3}`,
		`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"":{"":""}}`, `"\"\\\/\n\ud83d\ude00"`, `"\ud800"`, "\"\u00e4\U0001f600\"", `"{[,:]}"`,
		`1e400`, `1e401`, `1e-401`, `1e99999999999999999999`, strings.Repeat("9", maxDigits), strings.Repeat("9", maxDigits+1), `0`, `-0`,
		nested(maxDepth - 1), nested(maxDepth), nested(maxDepth + 1), nested(20_000), `{"a":` + nested(maxDepth-1) + `}`, `{"a":` + nested(maxDepth) + `}`,
		`[[1,"a"],{"b":[]}]x`, `[1] [2]`, `tru`, `nullx`, `{"a":1,}`, `[1,]`, `"` + "\xff" + `"`,
	} {
		sameAsSlowly(t, text)
	}
	value := rapid.Custom(drawJSON)
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.MarshalIndent(value.Draw(t, "value"), "", strings.Repeat(" ", rapid.IntRange(0, 1).Draw(t, "indent")))
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.IntRange(0, len(text)).Draw(t, "cut")
		sameAsSlowly(t, string(text))
		sameAsSlowly(t, string(text[:cut]))
	})
}

func drawJSON(t *rapid.T) any {
	switch rapid.IntRange(0, 6).Draw(t, "kind") {
	case 0:
		return rapid.MapOfN(rapid.String(), rapid.Custom(drawJSON), 0, 3).Draw(t, "object")
	case 1:
		return rapid.SliceOfN(rapid.Custom(drawJSON), 0, 3).Draw(t, "array")
	case 2:
		return rapid.Float64().Draw(t, "number")
	case 3:
		return rapid.Bool().Draw(t, "boolean")
	case 4:
		return nil
	}
	return rapid.String().Draw(t, "string")
}

func sameAsSlowly(t rapid.TB, text string) {
	got, err := decode("arguments", text)
	want, slowErr := decodeSlowly("arguments", text)
	if text != strings.ToValidUTF8(text, "") { // decode alone looks for that
		if err == nil {
			t.Errorf("%.60q is taken although it is not UTF-8", text)
		}
		return
	}
	if (err == nil) != (slowErr == nil) || err != nil && err.Error() != slowErr.Error() {
		t.Errorf("%.60q: %v, want %v", text, err, slowErr)
	}
	if !reflect.DeepEqual(got, want) { // cmp takes for ever over arrays that nest so deep
		t.Errorf("%.60q is %v, want %v", text, got, want)
	}
}
