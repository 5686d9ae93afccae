package loop

// Verdict is a guard's answer.
type Verdict string

// What a guard can want, from mild to final. A guard that has nothing to say
// returns no trip at all.
const (
	VerdictNudge     Verdict = "nudge"      // tell the model once, in the same request
	VerdictFinalTurn Verdict = "final_turn" // one last call without tools, then STOPPED
	VerdictStop      Verdict = "stop"       // STOPPED at once
)
