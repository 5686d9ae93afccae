package loop

// guardAccount does what a budget wants that the run shares with others and that has no
// money left.
func guardAccount(m moment) *Tripped {
	if m.account.refused == nil {
		return nil
	}
	return m.accountTrip(m.now)
}
