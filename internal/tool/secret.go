package tool

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// secrets are the values that were put into one request, by name.
type secrets map[string]string

// redact replaces the secrets where an answer or an error repeats them: as they
// are, as JSON writes them, or as a URL does.
func (s secrets) redact(text string) string {
	if len(s) == 0 {
		return text
	}
	forms := s.forms()
	pairs := make([]string, 0, 2*len(forms))
	// At one place the first pair that fits wins, and one secret may begin another.
	for _, form := range slices.SortedFunc(maps.Keys(forms), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	}) {
		pairs = append(pairs, form, forms[form])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// trimPartial drops the beginning of a secret that a cut went through.
func (s secrets) trimPartial(text string) string {
	longest := 0
	for form := range s.forms() {
		for n := min(len(form)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, form[:n]) {
				longest = n
			}
		}
	}
	return text[:len(text)-longest]
}

// forms maps what a secret may look like to the mark that stands for it.
func (s secrets) forms() map[string]string {
	forms := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		value, mark := s[name], "[secret:"+name+"]"
		for _, form := range []string{
			value, strings.TrimSpace(value), // as a header's receiver sees it
			unquote(quote(value, true)), unquote(quote(value, false)), url.QueryEscape(value), url.PathEscape(value),
		} {
			if _, taken := forms[form]; form != "" && !taken {
				forms[form] = mark
			}
		}
	}
	return forms
}

// unquote is what stands between the quotes of a JSON string.
func unquote(quoted []byte) string { return string(quoted[1 : len(quoted)-1]) }
