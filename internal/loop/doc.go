// Package loop is the agent loop without the world: events fold into a State,
// and Next(state, now) names the one thing to do. There is no I/O, clock,
// goroutine, context, randomness or logger in it, so every verdict of every
// guard is the same after a resume, a failover or a replay.
//
// The contract with whoever drives it:
//
//	for {
//	    action := state.Next(now)
//	    append(action.Intent())   // durable and fenced, before anything happens
//	    result := perform(action) // the model or the tools: the only effects
//	    append(result)            // what came back
//	}
//
// Events are applied only after, or atomically with, being made durable. Next is
// asked only while nothing of the run is being performed. Then a crash at any
// point is answered by the last events of the journal:
//
//	last events                      what Next does
//	model_started                    charges the call at its hold, asks the model again
//	model_started of a summary       the same, for the summary
//	model_answered to that           records compacted, with the summary or why it is no good
//	compacted                        asks the model, held for the shorter request
//	model_failed                     waits, asks again, falls back, or ends the run
//	fell_back                        asks the next model, held at its price
//	model_answered with calls        judges the calls; starts those that may run
//	call_started, may be repeated    sends it again, with the same key
//	call_started, may not            records call_in_doubt; the run waits to be told
//	call_verified                    settles the doubt, or waits for the quarantine
//	call_handed_out                  waits for whoever runs the call; nobody is asked twice
//	child_cancelled                  waits for the child's last word, then charges its hold
//	approval_requested               waits until decided or expired; no timer in memory
//	approval_decided                 starts the call
//	call_finished, some              sends only the calls that have no result yet
//	model_answered, a final answer   has it checked, part by part
//	answer_checked                   asks the judge
//	answer_rejected                  asks the model again, or ends the run
//	checkpoint_judged, failed        tells the model; judged again before a final answer;
//	                                 the second time ends the run
//	tripped with final_turn          makes the wrap-up call
//	tripped with pause               waits until the limit is raised, else wraps up
//	pause_requested                  waits until it is resumed; nothing starts
//	resumed                          whatever the events before say, under the new limits
//	model_answered after that        ends the run as STOPPED, with the answer as partial
//	finished                         nothing
//
// Money: before each call its worst case is held, and a hold is only taken if
// the run could still pay for a wrap-up afterwards. A call is charged what the
// provider reports, and its hold when that is not known.
package loop
