package loop

// guardAccount does what a budget wants that the run shares with others and that has no
// money left, not even for a smaller call.
func guardAccount(m moment) *Tripped {
	if m.account.refused == nil || m.plan.shared && m.account.refusals < maxRefusals {
		return nil
	}
	return m.accountTrip(m.now)
}

func gaugeAccount(m moment) Gauge {
	r := m.account.refused
	if r == nil {
		return Gauge{}
	}
	return Gauge{Observed: r.Committed.Float(), Limit: r.Limit.Float(), Unit: "USD"}
}
