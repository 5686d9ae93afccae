package loop

import (
	"bytes"
	"compress/flate"
	"strings"
	"unicode"
)

// What makes a text a chant. The window is that of Gemini CLI's loop detection: its
// last 50 bytes stand there 10 times, at most 250 bytes apart in the mean, and
// what lies between is the same, give or take. Ten times something new between
// the same words is a report, not a chant.
const (
	chantWindow   = 50
	chantTimes    = 10
	chantDistance = 250
	chantGaps     = 5   // distinct texts between the last 10 hits
	chantStretch  = 250 // bytes that all of it covers, or a rule of dots would count
	chantTail     = chantTimes * chantDistance
)

// What is too long a chant for the window shows in how small it gets: real prose
// of that size is compressed to 0.4, a poem with its refrain to 0.2.
const (
	squeezeTail  = 4 << 10
	squeezeEvery = 1 << 10 // bytes between two looks
	squeezeRatio = 0.08
)

// maxBlanks is how many blanks in a row are a chant of their own: models that are
// held to JSON get lost in them.
const maxBlanks = 4 << 10

// Chant listens to a text while it is written, and hears when it goes round in
// circles without end. Code, tables, lists and JSON are left out: they look alike
// line for line and are none. The zero value is ready for one text; it is not safe
// for concurrent use. It keeps a few kilobytes, however long the text gets.
type Chant struct {
	prose  prose
	blanks int // bytes of white space in a row
	looked int // bytes of prose at the last look for the same words
	sized  int // bytes of prose at the last look at the size
	words  string
}

// Add takes the next fragment and reports whether the text has gone round in
// circles, in this fragment or before.
func (c *Chant) Add(fragment string) bool {
	for len(fragment) > 0 && c.words == "" {
		piece := fragment[:min(len(fragment), chantWindow)] // a whole answer at once is read like one in fragments
		fragment = fragment[len(piece):]
		c.prose.add(piece)
		c.look(piece)
	}
	return c.words != ""
}

// Words are what the text repeats, once Add has heard it; empty before.
func (c *Chant) Words() string { return c.words }

func (c *Chant) look(piece string) {
	if strings.TrimSpace(piece) == "" {
		c.blanks += len(piece)
	} else {
		c.blanks = 0
	}
	if c.blanks >= maxBlanks {
		c.words = "(nothing but white space)"
		return
	}
	if c.prose.size-c.looked >= chantWindow {
		c.looked = c.prose.size
		c.words = goesRound(c.prose.tail)
	}
	if c.words == "" && c.prose.size-c.sized >= squeezeEvery {
		c.sized = c.prose.size
		c.words = squeezes(c.prose.tail)
	}
}

// ChantIn returns the words that a whole answer repeats until its end, or "". A
// text that finds its way out is none.
func ChantIn(text string) string {
	if strings.TrimSpace(text) == "" && len(text) >= maxBlanks {
		return "(nothing but white space)"
	}
	if raw := []byte(text); goesRound(raw) == "" && squeezes(raw) == "" {
		return ""
	}
	var p prose
	p.add(text)
	if words := goesRound(p.tail); words != "" {
		return words
	}
	return squeezes(p.tail)
}

// chants reports whether a text repeats the same words until its end.
func chants(text string) bool { return ChantIn(text) != "" }

// goesRound returns the last window of a text if it comes again and again.
func goesRound(text []byte) string {
	if len(text) < chantStretch {
		return ""
	}
	tail := text[max(0, len(text)-chantTail):]
	window := tail[max(0, len(tail)-chantWindow):]
	if !bytes.ContainsFunc(window, unicode.IsLetter) { // a rule, dots, blanks to fill in
		return ""
	}
	hits := places(tail, window)
	if len(hits) < chantTimes {
		return ""
	}
	newest := hits[len(hits)-chantTimes:]
	if newest[chantTimes-1]-newest[0] > (chantTimes-1)*chantDistance || distinctGaps(tail, newest) > chantGaps {
		return ""
	}
	first := len(hits) - 1 // of those that follow each other closely
	for first > 0 && hits[first]-hits[first-1] <= chantDistance {
		first--
	}
	if len(tail)-hits[first] < chantStretch {
		return ""
	}
	return strings.ToValidUTF8(string(window), "")
}

// places are where part stands in text; they may overlap.
func places(text, part []byte) []int {
	var all []int
	for from := 0; ; {
		i := bytes.Index(text[from:], part)
		if i < 0 {
			return all
		}
		all = append(all, from+i)
		from += i + 1
	}
}

// distinctGaps counts the different texts from one place to the next.
func distinctGaps(text []byte, at []int) int {
	gaps := map[string]bool{}
	for i := 1; i < len(at); i++ {
		gaps[string(text[at[i-1]:at[i]])] = true
	}
	return len(gaps)
}

// squeezes returns the end of a text whose last 4 kB hold next to nothing. Only a
// text whose newest words stood there before, with the same in between, is worth
// the compressor: sentences that differ in a number get as small.
func squeezes(text []byte) string {
	if len(text) < squeezeTail {
		return ""
	}
	tail := text[len(text)-squeezeTail:]
	window := tail[squeezeTail-chantWindow:]
	hits := places(tail, window)
	if len(hits) < 3 || distinctGaps(tail, hits) > len(hits)/2 {
		return ""
	}
	var n counter
	w, err := flate.NewWriter(&n, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the package's own
	}
	if _, err := w.Write(tail); err != nil {
		panic(err) // counting cannot fail
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if float64(n) >= squeezeRatio*squeezeTail {
		return ""
	}
	return strings.ToValidUTF8(string(window), "")
}

// counter counts what is written to it.
type counter int

func (n *counter) Write(p []byte) (int, error) {
	*n += counter(len(p))
	return len(p), nil
}
