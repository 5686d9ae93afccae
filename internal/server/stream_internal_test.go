package server

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// recorder is a client that takes down what it is sent.
type recorder struct {
	grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]
	got []string
}

func (r *recorder) Send(msg *loopdv1.StreamEventsResponse) error {
	d := msg.GetDelta()
	r.got = append(r.got, fmt.Sprintf("call %d gap %t: %s", d.GetModelCall(), d.GetGap(), d.GetFragments()[0].GetText()))
	return nil
}

// TestDeltasBelongToTheCallInFlight: those of calls that have ended are dropped, and
// what is missing shows.
func TestDeltasBelongToTheCallInFlight(t *testing.T) {
	t.Parallel()
	client := &recorder{}
	f := &follower{call: 2, writing: true, out: &grpcSink{client, slowReader}}
	send := func(call int, n int64) {
		fragments := []loop.Delta{{Kind: loop.PartText, Text: fmt.Sprint(n)}}
		if err := f.sendDelta(t.Context(), postgres.DeltaBatch{Call: call, N: n, Fragments: fragments}); err != nil {
			t.Fatal(err)
		}
	}
	send(1, 9)
	send(2, 1)
	send(2, 2)
	send(2, 4)
	send(2, 5)
	f.writing = false
	send(2, 6)
	f.call, f.writing = 3, true
	send(2, 7)
	send(3, 2)

	want := []string{"call 2 gap false: 1", "call 2 gap false: 2", "call 2 gap true: 4", "call 2 gap false: 5", "call 3 gap true: 2"}
	if diff := cmp.Diff(want, client.got); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
}
