package loop

import "fmt"

// maxDenials is how many denials in a row disable a tool for the rest of the run.
const maxDenials = 2

// deny counts a denial.
func (l *ledger) deny(c *call) {
	if l.denials == nil {
		l.denials = map[string]int{}
	}
	l.denials[c.Call.Name]++
}

// denied is what the model is told of a call that nobody is asked about any more,
// or "".
func (l *ledger) denied(c *call) string {
	if l.denials[c.Call.Name] >= maxDenials {
		return fmt.Sprintf("The call did not run: %s was denied %d times in a row and is disabled for the rest of this run.", c.Call.Name, maxDenials)
	}
	for _, id := range l.order {
		if t := l.byID[id]; t != c && t.State == CallDenied && t.print == c.print {
			return "The call did not run: the same call (" + t.Call.ID + ") was denied before. Do not ask for it again."
		}
	}
	return ""
}
