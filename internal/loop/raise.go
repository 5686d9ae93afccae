package loop

import "fmt"

// LimitField names the limit that a guard holds runs to, as in the API:
// "max_iterations"; the first, if there are several. "": no limit does.
func LimitField(guard string) string {
	if info, known := GuardNamed(guard); known && len(info.Fields) > 0 {
		return info.Fields[0]
	}
	return ""
}

// The limits of the guard "tokens", which has two.
const (
	fieldTotalTokens  = "max_total_tokens"
	fieldOutputTokens = "max_output_tokens"
)

// heldByParent reports whether a child run has a limit because its parent holds as
// much for it, so that to raise it would let the tree spend what nobody holds.
func heldByParent(field string) bool {
	switch field {
	case "max_cost_usd", fieldTotalTokens, "max_model_calls", "deadline", "max_wall_time":
		return true
	}
	return false
}

// RaiseFaults reports every limit in which wanted is no raise of l, the limits in
// force, nor the same. child: the run is a child run, whose parent holds its share.
func (l Limits) RaiseFaults(wanted Limits, child bool) []*LimitError {
	var faults []*LimitError
	for _, f := range allLimits() {
		now, want := f.get(l), f.get(wanted)
		switch {
		case want < now:
			faults = append(faults, &LimitError{Field: f.name, Reason: fmt.Sprintf(
				"%s is below the %s in force, and limits of a run are only raised; leave it out to keep it", f.text(want), f.text(now))})
		case want > now && child && heldByParent(f.name):
			faults = append(faults, &LimitError{Field: f.name, Reason: fmt.Sprintf(
				"a child run spends what its parent holds for it, so that %s cannot be raised to %s; leave it out, and give the agent more before the next run", f.text(now), f.text(want))})
		}
	}
	return faults
}

// Raised lists the limits, as in the API, in which wanted differs from l.
func (l Limits) Raised(wanted Limits) []string {
	var fields []string
	for _, f := range allLimits() {
		if f.get(wanted) != f.get(l) {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// NotRaisedError says why a run that a guard paused does not go on: nobody raised the
// limit.
type NotRaisedError struct {
	Guard      string
	Field      string // to raise, as in the API; "": an input is the only way
	InForce    string // the limit as it is, for people
	Observed   string // what the guard saw, for people
	TakesInput bool   // an input is enough too
}

// Error names the limit, what is in force, what was observed, and the fix.
func (e *NotRaisedError) Error() string {
	text := "guard " + e.Guard + " paused the run"
	if e.Observed != "" {
		text += " (observed: " + e.Observed + ")"
	}
	if e.Field == "" {
		return text + ": give an input to resume it"
	}
	text += ": raise " + e.Field
	if e.InForce != "" {
		text += " above the " + e.InForce + " in force"
	}
	if e.TakesInput {
		text += ", or give an input"
	}
	return text
}

// CheckResume is the rule for going on after guards paused a run: each tripped limit
// was raised, or, for guards that look for progress, the model is given a word. It
// returns nil, or a *NotRaisedError for the first guard that neither holds for.
// required is what the run requires, inForce are its limits.
func CheckResume(required []RequiredAction, inForce Limits, r Resumed) error {
	for _, a := range required {
		if a.Kind != RequireRaise || a.TakesInput && r.Input != "" {
			continue
		}
		f, known := limitNamed(a.Field)
		if r.Limits == nil || !known || f.get(*r.Limits) <= f.get(inForce) {
			return &NotRaisedError{Guard: a.Guard, Field: a.Field, InForce: inForce.Text(a.Field), Observed: a.Observed, TakesInput: a.TakesInput}
		}
	}
	return nil
}

// Text is the limit with that name, both as in the API: "12", "1.5", "600s". "": there
// is none.
func (l Limits) Text(field string) string {
	f, known := limitNamed(field)
	if !known {
		return ""
	}
	return f.text(f.get(l))
}
