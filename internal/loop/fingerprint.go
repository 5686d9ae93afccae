package loop

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ArgsHash is what an approval is bound to: SHA-256 over run, call, tool and the
// exact argument text, length-prefixed so that no two tuples collide. Hex.
func ArgsHash(run RunRef, c ToolCall) string {
	return digest(run.Tenant, run.ID, c.ID, c.Name, c.Args)
}

// callPrint identifies what a call asks for: the tool and its canonical
// arguments, without those declared volatile. Arguments that are no JSON are
// taken as they are.
func callPrint(spec ToolSpec, c ToolCall) string {
	return digest("call", c.Name, canonicalArgs(c.Args, spec.VolatileArgs))
}

// canonicalArgs sorts keys and keeps number text exact: ids above 2^53 stay
// different from each other.
func canonicalArgs(args string, volatile []string) string {
	v, ok := decodeExact(args)
	if !ok {
		return args
	}
	if m, ok := v.(map[string]any); ok {
		for _, name := range volatile {
			delete(m, name)
		}
	}
	b, err := json.Marshal(v) // maps marshal with sorted keys
	if err != nil {
		return args
	}
	return string(b)
}

// decodeExact decodes a text that is one JSON value and nothing else; what came
// after the value would be lost to the fingerprint.
func decodeExact(text string) (any, bool) {
	if !json.Valid([]byte(text)) {
		return nil, false
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err == nil
}

// Result text that changes from call to call without meaning anything.
const (
	patternANSI  = "\x1b\\[[0-9;]*[A-Za-z]"
	patternUUID  = `[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`
	patternTime  = `\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?`
	patternHex   = `0x[0-9a-fA-F]{6,}`
	patternDigit = `\d+`
)

// Fingerprinter computes result fingerprints. It holds compiled patterns; make
// one and share it.
type Fingerprinter struct{ noise, digits *regexp.Regexp }

// NewFingerprinter compiles the patterns.
func NewFingerprinter() *Fingerprinter {
	return &Fingerprinter{
		noise:  regexp.MustCompile(strings.Join([]string{patternANSI, patternUUID, patternTime, patternHex}, "|")),
		digits: regexp.MustCompile(patternDigit),
	}
}

// Result identifies what a call brought: its outcome and its content without
// noise. It is taken over the full result, before anything is cut. Bare numbers
// of successful results stay (34 % to 35 % is progress); in errors they go, as
// "retry in 7 s" and "retry in 6 s" are the same refusal.
func (f *Fingerprinter) Result(spec ToolSpec, o Outcome, content string) string {
	if len(spec.VolatileResult) > 0 {
		content = dropPointers(content, spec.VolatileResult)
	}
	if mayHaveNoise(content) {
		content = f.noise.ReplaceAllString(content, "~")
	}
	if o != OutcomeOK {
		content = f.digits.ReplaceAllString(content, "#")
	}
	return digest("result", string(o), strings.TrimSpace(content))
}

// mayHaveNoise reports whether a noise pattern could match: each has an escape, "0x",
// or a dash with hexadecimal digits around it, four of them before. To look for those
// is a hundred times cheaper than the patterns, and most results have none.
func mayHaveNoise(content string) bool {
	if strings.IndexByte(content, '\x1b') >= 0 || strings.Contains(content, "0x") {
		return true
	}
	for i := 0; i < len(content); i++ {
		next := strings.IndexByte(content[i:], '-')
		if next < 0 {
			return false
		}
		i += next
		if i >= 4 && i+1 < len(content) && isHex(content[i+1]) &&
			isHex(content[i-1]) && isHex(content[i-2]) && isHex(content[i-3]) && isHex(content[i-4]) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// dropPointers removes the values at JSON pointers. Content that is no JSON
// stays as it is.
func dropPointers(content string, pointers []string) string {
	v, ok := decodeExact(content)
	if !ok {
		return content
	}
	for _, p := range pointers {
		dropPointer(v, strings.Split(strings.TrimPrefix(p, "/"), "/"))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return content
	}
	return string(bytes.TrimSpace(b))
}

func dropPointer(v any, path []string) {
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch node := v.(type) {
	case map[string]any:
		if len(path) == 1 {
			delete(node, name)
			return
		}
		dropPointer(node[name], path[1:])
	case []any:
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(node) {
			return
		}
		if len(path) == 1 {
			node[i] = nil
			return
		}
		dropPointer(node[i], path[1:])
	}
}

// iterationPrint identifies an iteration: the multiset of its calls with their
// results. Sorted, because the calls of one answer have no order.
func iterationPrint(pairs []string) string {
	pairs = slices.Clone(pairs)
	slices.Sort(pairs)
	return digest(pairs...)
}

// digest hashes length-prefixed strings, so that ("ab","c") and ("a","bc") differ.
func digest(parts ...string) string {
	size := 0
	for _, p := range parts {
		size += len(p) + len("9223372036854775807:")
	}
	all := make([]byte, 0, size)
	for _, p := range parts {
		all = append(strconv.AppendInt(all, int64(len(p)), 10), ':')
		all = append(all, p...)
	}
	sum := sha256.Sum256(all)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// excerpt shortens text for evidence, at a rune's boundary.
func excerpt(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
