package loop

// account is what the run knows of the accounts that it shares with other runs.
type account struct {
	refused *AccountRefused // the newest refusal, until the run goes on
}
