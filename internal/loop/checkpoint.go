package loop

import "time"

// nextCheckpoint has the checkpoints judged that are due after the newest
// iteration.
func (s *State) nextCheckpoint(time.Time) Action { return nil }

func (s *State) applyCheckpoint(CheckpointJudged) {}
