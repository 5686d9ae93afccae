package loop

// guardBudget passes on what the plan found: no call fits the money or the
// tokens that are left.
func guardBudget(m moment) *Tripped {
	if m.plan.refused == nil {
		return nil
	}
	t := *m.plan.refused
	return &t
}
