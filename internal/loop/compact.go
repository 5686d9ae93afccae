package loop

import "time"

// compact makes the transcript shorter when it fills too much of the window, or is
// nil when there is no need or no way.
func (s *State) compact(time.Time) Action { return nil }

func (s *State) applyCompacted(Compacted, Event) error { return nil }
