package server

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// tripProto shows a trip that is in a journal, with what the table of guards says of
// its guard and what people say of it.
func tripProto(t postgres.Trip) *loopdv1.GuardTrip {
	p := verdictProto(t.Tripped)
	p.Seq, p.Time = t.Seq, timeProto(t.At)
	if t.Report != nil {
		p.FalsePositive, p.ReportedBy, p.ReportReason = true, t.Report.By, t.Report.Reason
	}
	return p
}

// verdictProto shows a verdict, also one that no journal holds.
func verdictProto(t loop.Tripped) *loopdv1.GuardTrip {
	p := &loopdv1.GuardTrip{
		Guard: t.Guard, Verdict: guardVerdictProto(t.Verdict), DefaultVerdict: guardVerdictProto(t.Default),
		Reason: stopReasonProto(t.Reason), Observed: t.Observed, Limit: t.Limit, Message: t.Message,
		Iteration: clampInt32(t.Iteration), Evidence: evidenceProto(t.Evidence), Told: t.Say,
	}
	if info, known := loop.GuardNamed(t.Guard); known {
		p.Phase, p.Advice, p.LimitField = string(info.Phase), info.Advice, limitField(info, t)
	}
	for _, g := range t.Gauges {
		p.Gauges = append(p.Gauges, &loopdv1.GuardGauge{Guard: g.Guard, Observed: g.Observed, Limit: g.Limit, Unit: g.Unit})
	}
	return p
}

// limitField is the limit that a trip is about. Of the two of the token guard it is
// the one that the trip names, or else the one of which more is used.
func limitField(info loop.GuardInfo, t loop.Tripped) string {
	if t.Field != "" {
		return t.Field
	}
	if len(info.Fields) == 0 {
		return ""
	}
	for _, g := range t.Gauges {
		if g.Guard == t.Guard && g.Unit == "output tokens" && len(info.Fields) == 2 {
			return info.Fields[1]
		}
	}
	return info.Fields[0]
}

func evidenceProto(evidence []loop.Evidence) []*loopdv1.Evidence {
	var shown []*loopdv1.Evidence
	for _, e := range evidence {
		shown = append(shown, &loopdv1.Evidence{
			Iteration: clampInt32(e.Iteration), CallId: e.CallID, Tool: e.Tool, Arguments: e.Args, ArgumentsHash: e.ArgsHash,
			Result: e.Result, ResultHash: e.ResultHash, Note: e.Note,
		})
	}
	return shown
}

// suggestionsProto shows what journals say about an agent's limits.
func suggestionsProto(s loop.Suggestions) *loopdv1.SuggestLimitsResponse {
	p := &loopdv1.SuggestLimitsResponse{Runs: clampInt32(s.Runs), Successes: clampInt32(s.Successes), Note: s.Note}
	changed := map[protoreflect.Name]bool{}
	for _, l := range s.Limits {
		shown := &loopdv1.LimitSuggestion{
			Field: l.Field, Guard: l.Guard, Current: l.Current, Proposed: l.Proposed, Used: l.Used, RunsEnded: clampInt32(l.Ended), Why: l.Why,
		}
		for _, c := range l.Ladder {
			shown.Ladder = append(shown.Ladder, &loopdv1.LimitCandidate{
				Value: c.Value, SuccessesCut: clampInt32(c.Cut), Share: c.Share, Stopped: clampInt32(c.Stopped), SavedUsd: c.Saved.String(),
			})
		}
		changed[protoreflect.Name(l.Field)] = l.Proposed != l.Current
		p.Suggestions = append(p.Suggestions, shown)
	}
	if proposed := onlyFields(limitsProto(s.Proposed), changed); proposed != nil {
		p.Proposed = proposed
	}
	return p
}

// onlyFields leaves the fields that are wanted, nil for none.
func onlyFields(l *loopdv1.Limits, wanted map[protoreflect.Name]bool) *loopdv1.Limits {
	m, left := l.ProtoReflect(), false
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if !wanted[fields.Get(i).Name()] {
			m.Clear(fields.Get(i))
			continue
		}
		left = true
	}
	if !left {
		return nil
	}
	return l
}
