package loop

// Priority says how much a run matters among those of its tenant that wait to be
// driven. Between tenants it means nothing. Empty is PriorityNormal.
type Priority string

// Each priority has a head start over the one below it: a run goes first unless the
// other one has waited longer by more than that. So nobody waits for ever.
const (
	PriorityLow    Priority = "LOW"
	PriorityNormal Priority = "NORMAL"
	PriorityHigh   Priority = "HIGH"
)

// Rank orders priorities: -1, 0 or 1.
func (p Priority) Rank() int {
	switch p {
	case PriorityHigh:
		return 1
	case PriorityLow:
		return -1
	}
	return 0
}

// PriorityOf is the priority of a rank.
func PriorityOf(rank int) Priority {
	switch {
	case rank > 0:
		return PriorityHigh
	case rank < 0:
		return PriorityLow
	}
	return PriorityNormal
}

// Room is what a worker has room for when it asks for runs.
type Room struct {
	// Free is how many runs it takes at most.
	Free int
	// PerTenant is how many runs of one tenant it drives at most. 0: no such bound.
	PerTenant int
	// Driven is how many runs of each tenant it drives already. Of those who wait, the
	// tenant that has fewest is next.
	Driven map[string]int
	// Skip are runs that it leaves to others.
	Skip []RunRef
}
