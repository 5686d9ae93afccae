package loop

// AccountNeed is what a model call needs of the accounts that its run shares with
// others.
type AccountNeed struct {
	Agent  string            // of the run, "agents/support"
	Labels map[string]string // of the run
	Amount USD               // what the call and the wrap-up after it could cost
}

// account is what the run knows of the accounts that it shares with other runs.
type account struct {
	refused *AccountRefused // the newest refusal, until the run goes on
}
