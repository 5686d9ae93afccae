package loop

// Signal is something that the outside says to a run: the server writes it, the
// worker that owns the run turns it into the event that Body returns. So a
// run's journal has a single writer.
type Signal struct {
	ID   int64 // order of arrival
	Body Body  // CancelRequested, PauseRequested, Resumed, ApprovalDecided, CallResolved, ResultSubmitted or ChildFinished
}
