package anthropic

import (
	"bytes"
	"encoding/json"
	"slices"
)

const (
	// breakpoints is the most that the API accepts; a fifth is a 400.
	breakpoints = 4

	// lookBack is how far apart breakpoints may be, in blocks. Looking for what an
	// earlier request wrote, the API goes back 20 blocks from each; two are spare.
	lookBack = 18

	cacheMark = `,"cache_control":{"type":"ephemeral"}`
)

// mark puts cache breakpoints into copies of the last user messages; left is how
// many the tools and the system prompt did not take.
//
// Two slide along. One at the very end is written for the next request. One at
// the end of the user message before stands where the last request ended, so it
// is found there whatever number of blocks one iteration adds: parallel calls
// easily add more than the API looks back over. Marks that are left stand between
// the two where they are far apart. Assistant messages carry none: they are sent
// back as they came.
func mark(items []json.RawMessage, left int) []json.RawMessage {
	tail := lastUser(items, len(items))
	if tail < 0 || left <= 0 {
		return items
	}
	marked := slices.Clone(items)
	before := lastUser(items, tail)
	if before >= 0 && left > 1 {
		marked[before] = insert(items[before], []int{lastEnd(items[before])})
		left--
	}
	at := []int{lastEnd(items[tail])}
	if spare := left - 1; spare > 0 {
		at = append(between(items[before+1:tail+1], spare), at...)
	}
	marked[tail] = insert(items[tail], at)
	return marked
}

// lastUser is the index of the last user message before end, or -1.
func lastUser(items []json.RawMessage, end int) int {
	for i := end - 1; i >= 0; i-- {
		if bytes.HasPrefix(items[i], []byte(userOpen)) {
			return i
		}
	}
	return -1
}

// lastEnd is where the last block of a message that we wrote is closed.
func lastEnd(item []byte) int { return len(item) - len(itemClose) - 1 }

// between chooses blocks of the last item, rising, for at most spare marks, if
// more blocks are in items than the API looks back over.
func between(items []json.RawMessage, spare int) (at []int) {
	ends := blockEnds(items[len(items)-1])
	added := len(ends)
	for _, item := range items[:len(items)-1] {
		added += len(blockEnds(item))
	}
	for i := len(ends) - 1; added > lookBack && i > 0 && len(at) < spare; added -= lookBack {
		i = max(i-lookBack, 0)
		at = append(at, ends[i])
	}
	slices.Reverse(at)
	return at
}

// blockEnds is where each content block of a message is closed.
func blockEnds(item []byte) (ends []int) {
	depth, quoted := 0, false
	for i := 0; i < len(item); i++ {
		switch c := item[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			// A block is an object, in the list of blocks, in the message.
			if depth == 3 && c == '}' {
				ends = append(ends, i)
			}
			depth--
		}
	}
	return ends
}

// insert returns a copy of item with marks before the given rising offsets. The
// item itself is shared with the memo and stays as it is.
func insert(item []byte, at []int) []byte {
	out := make([]byte, 0, len(item)+len(at)*len(cacheMark))
	from := 0
	for _, to := range at {
		out = append(append(out, item[from:to]...), cacheMark...)
		from = to
	}
	return append(out, item[from:]...)
}
