package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// What a repeated request finds may still wait for a synchronous standby, so its answer
// waits too: it locks the run, which its own commit has to bring to the standbys. The
// lock stays visible as the row's xmax.
func TestRepeatedRequestsWaitForStandbys(t *testing.T) {
	t.Parallel()
	none := Idempotency{}
	for name, say := range map[string]func(*Store, loop.RunRef) error{
		"cancel":  func(s *Store, ref loop.RunRef) error { return s.Signal(t.Context(), ref, loop.CancelRequested{}, none) },
		"confirm": func(s *Store, ref loop.RunRef) error { return s.Confirm(t.Context(), ref) },
		"cancel a cancelled run": func(s *Store, ref loop.RunRef) error {
			if _, err := s.pool.Exec(t.Context(), "UPDATE runs SET state = 'CANCELLED', ended_at = now(), stop = '{}' WHERE ended_at IS NULL"); err != nil {
				return err
			}
			if err := s.Signal(t.Context(), ref, loop.CancelRequested{}, none); !errors.Is(err, ErrRunFinished) {
				return fmt.Errorf("the cancel of a cancelled run: %w", err)
			}
			return nil
		},
		"pause": func(s *Store, ref loop.RunRef) error { return s.Pause(t.Context(), ref, loop.PauseRequested{}, none) },
		"decide": func(s *Store, ref loop.RunRef) error {
			_, err := s.Decide(t.Context(), ref, approve("c1-1"))
			return err
		},
		"submit": func(s *Store, ref loop.RunRef) error {
			_, err := s.SubmitResult(t.Context(), ref, result("c1-2", 1, "{}"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			ref := park(t, s, asked("c1-1", soon()), offered("c1-2", soon()))
			locked := func() string {
				return scalar[string](t, s, "SELECT xmax::text FROM runs WHERE run_id = '"+ref.ID+"'")
			}
			if err := say(s, ref); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				before := locked()
				if err := say(s, ref); err != nil {
					t.Fatal(err)
				}
				if locked() == before {
					t.Error("the repeated request only read")
				}
			}
		})
	}
}
