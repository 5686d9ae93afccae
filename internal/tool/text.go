package tool

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"mime"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// An answer of at least binaryMin bytes of which a tenth is no text is not
	// shown: a model learns nothing from a page of replacement marks.
	binaryMin   = 64
	binaryShare = 10
)

const (
	replacedMark = "[loopd: the answer is not plain UTF-8 text; each \uFFFD stands for bytes that are not]\n"
	hiddenMark   = "[loopd: characters of the answer that hide or reorder text are written as [U+XXXX]]\n"
)

// text is the body as a model may see it: valid UTF-8, no NUL, nothing that hides
// or reorders text. What had to be changed is said in front of it.
func (b body) text() string {
	raw := bytes.TrimPrefix(b.bytes, []byte("\uFEFF"))
	if b.cut {
		raw = trimPartialRune(raw)
	}
	c := cleaned(raw)
	if c.spoilt*binaryShare > len(raw) && len(raw) >= binaryMin {
		return b.describe()
	}
	return c.marked()
}

// describe stands for an answer that is not text.
func (b body) describe() string {
	kind, _, err := mime.ParseMediaType(b.media)
	if err != nil || len(kind) > 80 { // longer ones are made up
		kind = "no known type"
	}
	return fmt.Sprintf("[loopd: the answer is %d bytes of %s that are not UTF-8 text, so they are not shown; SHA-256 of the %d that were read: %x]",
		b.size, kind, len(b.bytes), sha256.Sum256(b.bytes))
}

// clean is a text and how much of it was changed.
type clean struct {
	text   string
	spoilt int // bytes that are not UTF-8, or NUL
	hidden int // characters that hide or reorder text
}

// cleaned makes a text safe to show. Runs of bytes that are not UTF-8 become one
// mark, as strings.ToValidUTF8 has it.
func cleaned(raw []byte) clean {
	if isPlain(raw) {
		return clean{text: string(raw)}
	}
	var c clean
	var b strings.Builder
	b.Grow(len(raw) + len(raw)/8)
	inRun := false
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		invalid := r == utf8.RuneError && size == 1
		switch {
		case invalid || r == 0:
			if r == 0 || !inRun {
				b.WriteRune(utf8.RuneError)
			}
			c.spoilt++
		case isHidden(r):
			fmt.Fprintf(&b, "[%U]", r)
			c.hidden++
		default:
			b.WriteRune(r)
		}
		inRun, raw = invalid, raw[size:]
	}
	c.text = b.String()
	return c
}

// marked is the text with a word in front of it about what was changed.
func (c clean) marked() string {
	text := c.text
	if c.hidden > 0 {
		text = hiddenMark + text
	}
	if c.spoilt > 0 {
		text = replacedMark + text
	}
	return text
}

// isPlain reports whether there is nothing to change, as in nearly all answers.
func isPlain(raw []byte) bool {
	for i := 0; i < len(raw); {
		if c := raw[i]; c != 0 && c < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRune(raw[i:])
		if r == 0 || r == utf8.RuneError && size == 1 || isHidden(r) {
			return false
		}
		i += size
	}
	return true
}

// isHidden reports whether a reader does not see a character, or sees others in
// another order because of it. Joiners are no such: scripts and emoji need them.
func isHidden(r rune) bool {
	const zeroWidthSpace, wordJoiner, byteOrderMark = '\u200B', '\u2060', '\uFEFF'
	return r == zeroWidthSpace || r == wordJoiner || r == byteOrderMark || r > unicode.MaxLatin1 && unicode.Is(unicode.Bidi_Control, r)
}

// trimPartialRune drops the beginning of a rune that a cut went through.
func trimPartialRune(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		tail := b[len(b)-i:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}
