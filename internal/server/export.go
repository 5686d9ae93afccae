package server

import (
	"context"

	"google.golang.org/grpc"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// ExportRun writes out all that there is of a run.
func (r *runService) ExportRun(req *loopdv1.ExportRunRequest, stream grpc.ServerStreamingServer[loopdv1.ExportRunResponse]) error {
	ctx := stream.Context()
	err := r.s.Export(ctx, runRef(tenant(ctx), req.GetName()), stream.Send)
	return named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetName())
}

// Export hands over all that there is of a run, part by part in the order of ExportRun.
// The error is a loop.ErrNotFound if the tenant has no such run, or the one of send.
func (s *Server) Export(ctx context.Context, ref loop.RunRef, send func(*loopdv1.ExportRunResponse) error) error {
	run, err := s.store.GetRun(ctx, ref)
	if err != nil {
		return err
	}
	head := runProto(run)
	if err := s.showTrips(ctx, ref, head); err != nil {
		return err
	}
	x := exporter{s.store, ref, func(part *loopdv1.ExportRunResponse) error {
		part.Run = runName(ref.ID)
		return send(part)
	}}
	if err := x.send(&loopdv1.ExportRunResponse{Part: &loopdv1.ExportRunResponse_Head{Head: head}}); err != nil {
		return err
	}
	for _, export := range []func(context.Context) error{x.events, x.modelCalls, x.results, x.attachments} {
		if err := export(ctx); err != nil {
			return err
		}
	}
	return nil
}

// exporter is one export that is under way.
type exporter struct {
	store *postgres.Store
	run   loop.RunRef
	send  func(*loopdv1.ExportRunResponse) error
}

func (x exporter) events(ctx context.Context) error {
	journal, err := newJournalReader(x.store, x.run)
	if err != nil {
		return err
	}
	for {
		events, err := journal.next(ctx, eventBatch)
		if err != nil || len(events) == 0 {
			return err
		}
		for _, e := range events {
			if err := x.send(&loopdv1.ExportRunResponse{Part: &loopdv1.ExportRunResponse_Event{Event: e}}); err != nil {
				return err
			}
		}
	}
}

func (x exporter) modelCalls(ctx context.Context) error {
	calls, err := x.store.ModelCalls(ctx, x.run)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if err := x.send(&loopdv1.ExportRunResponse{Part: &loopdv1.ExportRunResponse_ModelCall{ModelCall: modelCallProto(c)}}); err != nil {
			return err
		}
	}
	return nil
}

func (x exporter) results(ctx context.Context) error {
	return x.store.EachFullResult(ctx, x.run, func(full loop.FullResult) error {
		result := &loopdv1.ExportedResult{CallId: full.CallID, Attempt: clampInt32(full.Attempt), Text: full.Text}
		return x.send(&loopdv1.ExportRunResponse{Part: &loopdv1.ExportRunResponse_CallResult{CallResult: result}})
	})
}

func (x exporter) attachments(ctx context.Context) error {
	return x.store.EachAttachment(ctx, x.run, func(index int, data []byte) error {
		attachment := &loopdv1.ExportedAttachment{Index: clampInt32(index), Data: data}
		return x.send(&loopdv1.ExportRunResponse{Part: &loopdv1.ExportRunResponse_Attachment{Attachment: attachment}})
	})
}

func modelCallProto(c postgres.ModelCall) *loopdv1.ModelCall {
	shown := &loopdv1.ModelCall{
		Call: clampInt32(c.Call), Model: c.Model, Purpose: c.Purpose, StartTime: timeProto(c.StartedAt), SettleTime: timeProto(c.SettledAt),
		HoldUsd: c.Hold.String(), Estimated: c.Estimated, PriceVersion: c.PriceVersion,
		Usage: &loopdv1.Usage{
			InputUncachedTokens: c.InputUncached, CacheReadTokens: c.CacheRead, CacheWriteTokens: c.CacheWrite,
			OutputTokens: c.Output, ReasoningTokens: c.Reasoning,
		},
	}
	if shown.GetPurpose() == "" {
		shown.Purpose = conversation
	}
	if !c.SettledAt.IsZero() {
		shown.CostUsd = c.Cost.String()
	}
	return shown
}
