package postgres

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Budget is a ceiling on what the runs of a tenant that it binds may spend together.
type Budget struct {
	Name        string      // its id, "acme-daily" of "budgets/acme-daily"
	DisplayName string      // for people
	Scope       BudgetScope // whose spending counts; never changes
	Window      BudgetWindow
	TimeZone    string       // IANA name, "UTC"; the calendar that the window follows
	Amount      loop.USD     // for each window
	Act         loop.Verdict // of runs for which no money is left: VerdictFinalTurn, VerdictPause or VerdictStop
	CreatedBy   string
	CreatedAt   time.Time
	UpdatedAt   time.Time
	ArchivedAt  time.Time // zero: it is in force

	zone *time.Location // nil: not loaded
}

// BudgetScope says which runs of a tenant a budget binds. The zero value binds all
// of them.
type BudgetScope struct {
	Agent      string // resource name, "agents/support": the runs of one agent
	LabelKey   string // the runs that carry this label
	LabelValue string // with this value
}

// Binds reports whether a run of an agent with these labels counts.
func (s BudgetScope) Binds(agent string, labels map[string]string) bool {
	switch {
	case s.Agent != "":
		return s.Agent == agent
	case s.LabelKey != "":
		value, has := labels[s.LabelKey]
		return has && value == s.LabelValue
	}
	return true
}

// Words of budgets.scope.
const (
	scopeTenant = "TENANT"
	scopeAgent  = "AGENT"
	scopeLabel  = "LABEL"
)

// word is the scope's kind, as the database has it.
func (s BudgetScope) word() string {
	switch {
	case s.Agent != "":
		return scopeAgent
	case s.LabelKey != "":
		return scopeLabel
	}
	return scopeTenant
}

// BudgetWindow is the stretch of time that a budget's amount is for.
type BudgetWindow string

// The windows. Hours, days and months are those of the calendar in the budget's time
// zone.
const (
	WindowRun   BudgetWindow = "RUN" // each run by itself: a ceiling on its limit, with no account
	WindowHour  BudgetWindow = "HOUR"
	WindowDay   BudgetWindow = "DAY"
	WindowMonth BudgetWindow = "MONTH"
	WindowTotal BudgetWindow = "TOTAL" // all time
)

// Kinds of budget events.
const (
	BudgetCreated   = "created"
	BudgetChanged   = "changed"
	BudgetArchived  = "archived"
	BudgetThreshold = "threshold" // spending passed 50, 80 or 100 percent
)

// Period is one window on the calendar: from Start, and until before End.
type Period struct {
	Start time.Time // zero: the beginning of time
	End   time.Time // zero: never
}
