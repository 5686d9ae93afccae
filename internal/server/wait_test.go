package server_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// A run that keeps going on is never what a wait answers with: it must have ended, or wait
// for somebody, in the very reading that is the answer.
func TestAWaitNeverAnswersWithARunThatGoesOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	ctx, stop := context.WithCancel(t.Context())
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		t.Fatal(err)
	}
	var flips sync.WaitGroup
	flips.Go(func() {
		defer conn.Close(context.Background())
		for ctx.Err() == nil {
			for _, state := range []string{"REQUIRES_ACTION", "RUNNING"} {
				if _, err := conn.Exec(ctx, "UPDATE runs SET state = $1", state); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", state, err)
				}
			}
		}
	})
	var waits sync.WaitGroup
	for range 24 { // at once, since each may look again only after a second
		waits.Go(func() {
			got, err := w.runs.WaitRun(ctx, &loopdv1.WaitRunRequest{Name: run.GetName(), Timeout: durationpb.New(time.Minute)})
			if err != nil || got.GetState() != loopdv1.RunState_RUN_STATE_REQUIRES_ACTION {
				t.Errorf("a wait was answered with a run that is %s, %v", got.GetState(), err)
			}
		})
	}
	waits.Wait()
	stop()
	flips.Wait()
}
