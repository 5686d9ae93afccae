package loop

// guardCost passes on what the plan found: no call fits the money that is left.
func guardCost(m moment) *Tripped { return copied(m.plan.noMoney) }

// guardTokens is guardCost for the tokens.
func guardTokens(m moment) *Tripped { return copied(m.plan.noTokens) }

func copied(t *Tripped) *Tripped {
	if t == nil {
		return nil
	}
	c := *t
	return &c
}

// gaugeCost is what was spent and what child runs may still spend.
func gaugeCost(m moment) Gauge {
	return Gauge{Observed: m.spend.committed().Float(), Limit: m.spec.Limits.Cost.Float(), Unit: "USD"}
}

// gaugeTokens is the token budget of which the larger part is used.
func gaugeTokens(m moment) Gauge {
	l, used := m.spec.Limits, m.spend.used()
	total := gaugeCount(used.Total(), l.TotalTokens, "tokens")
	output := gaugeCount(used.AllOutput(), l.OutputTokens, "output tokens")
	if output.Observed*total.Limit > total.Observed*output.Limit {
		return output
	}
	return total
}
