package main

import (
	"fmt"

	"github.com/loopd/loopd/internal/loop"
)

// compactedWords say what became of a transcript that grew too long.
func compactedWords(b loop.Compacted) string {
	how := "its oldest part was summed up"
	switch {
	case b.Failure != "":
		return "the transcript could not be made shorter: " + b.Failure
	case b.Method == loop.CompactClear:
		how = fmt.Sprintf("%d old results were left out", len(b.Cleared))
	}
	return fmt.Sprintf("the transcript was made shorter, from about %d to %d tokens: %s", b.Before, b.After, how)
}
