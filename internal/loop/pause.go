package loop

import "time"

// pause is whether and why the run is held back.
type pause struct {
	asked *PauseRequested // until it is resumed
	raise *Tripped        // the guard's pause that is waited out, until the limit is raised or nobody did
}

// nextPause holds a run back that somebody paused.
func (s *State) nextPause(time.Time) Action { return nil }

// pauseOn gives the lease back until the tripped limit is raised.
func (s *State) pauseOn(facts []Body, _ Tripped) Action { return Suspend{intent{facts}} }

func (s *State) applyResumed(Resumed, Event) error { return nil }
