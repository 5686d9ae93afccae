package server

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// callsPerIteration is how many model calls a run may make for each iteration that
// somebody asked for without asking for calls: an answer and two retries.
const callsPerIteration = 3

// limitsOf merges limits: what a later layer sets goes before the earlier ones and
// the defaults. The result has every limit, and is checked against the ceilings;
// path names the limits in the request, for errors.
func (s *Server) limitsOf(path string, layers ...*loopdv1.Limits) (loop.Limits, error) {
	limits := s.defaults
	modelCallsSet := false
	for _, l := range layers {
		if l == nil {
			continue
		}
		if err := overlay(&limits, l); err != nil {
			return loop.Limits{}, invalid(fieldError{path + ".max_cost_usd", err.Error()})
		}
		modelCallsSet = modelCallsSet || l.MaxModelCalls != nil
	}
	if !modelCallsSet && limits.Iterations != s.defaults.Iterations {
		limits.ModelCalls = min(callsPerIteration*limits.Iterations, s.ceilings.ModelCalls)
	}
	return limits, s.checkLimits(path, limits)
}

// overlay replaces the limits that l sets.
func overlay(dst *loop.Limits, l *loopdv1.Limits) error {
	set(&dst.Iterations, l.MaxIterations)
	set(&dst.ModelCalls, l.MaxModelCalls)
	set(&dst.TotalTokens, l.MaxTotalTokens)
	set(&dst.OutputTokens, l.MaxOutputTokens)
	set(&dst.ToolCalls, l.MaxToolCalls)
	set(&dst.CallsPerAnswer, l.MaxToolCallsPerAnswer)
	set(&dst.ParallelCalls, l.MaxParallelToolCalls)
	set(&dst.IdenticalIters, l.MaxIdenticalIterations)
	set(&dst.ErrorIters, l.MaxErrorIterations)
	set(&dst.InvalidIters, l.MaxInvalidIterations)
	set(&dst.SameCallIters, l.MaxSameCallIterations)
	set(&dst.Cycles, l.MaxCycles)
	set(&dst.FrequentRepeats, l.MaxFrequentRepeats)
	set(&dst.NearDuplicates, l.MaxNearDuplicates)
	set(&dst.NoveltyIters, l.MaxIterationsWithoutNovelty)
	set(&dst.CallFailures, l.MaxCallFailures)
	set(&dst.ToolFailures, l.MaxToolFailures)
	set(&dst.Monologue, l.MaxMonologueAnswers)
	set(&dst.FinalOutput, l.FinalAnswerMaxOutputTokens)
	set(&dst.AnswerOutput, l.AnswerMaxOutputTokens)
	set(&dst.Reasks, l.MaxReasks)
	set(&dst.StopAt, l.ContextStopAt)
	set(&dst.CompactAt, l.ContextCompactAt)
	set(&dst.Compactions, l.MaxCompactions)
	set(&dst.ChildDepth, l.MaxChildDepth)
	set(&dst.ActiveChildren, l.MaxActiveChildren)
	set(&dst.Children, l.MaxChildren)
	if l.Deadline != nil {
		dst.Deadline = l.GetDeadline().AsDuration()
	}
	if l.MaxWallTime != nil {
		dst.WallTime = l.GetMaxWallTime().AsDuration()
	}
	if l.NoProgressStop != nil {
		dst.NoProgressStops = l.GetNoProgressStop()
	}
	if l.CountInput != nil {
		dst.CountInput = l.GetCountInput()
	}
	if l.MaxCostUsd != nil {
		cost, err := loop.ParseUSD(l.GetMaxCostUsd())
		if err != nil {
			return err
		}
		dst.Cost = cost
	}
	return nil
}

func set[D int | int64 | float64, S int32 | int64 | float64](dst *D, src *S) {
	if src != nil {
		*dst = D(*src)
	}
}

// checkLimits refuses limits that no run may have here.
func (s *Server) checkLimits(path string, l loop.Limits) error {
	return s.limitFaults(path, l.Validate(s.ceilings))
}

// limitFaults refuses limits for their faults, if there are any.
func (s *Server) limitFaults(path string, faults []*loop.LimitError) error {
	if len(faults) == 0 {
		return nil
	}
	fields := make([]fieldError, len(faults))
	for i, f := range faults {
		fields[i] = fieldError{path + "." + f.Field, f.Reason}
	}
	r := invalid(fields...)
	for _, f := range faults {
		if f.Above {
			r.reason = loopdv1.ErrorReason_ERROR_REASON_LIMIT_ABOVE_CEILING
			r.metadata = map[string]string{"field": path + "." + f.Field, "ceiling": limitText(s.ceilings, f.Field)}
			break
		}
	}
	return r
}

// limitText is one of the limits, by its name in the API.
func limitText(limits loop.Limits, field string) string {
	m := limitsProto(limits).ProtoReflect()
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd == nil {
		return ""
	}
	if d, ok := m.Get(fd).Interface().(protoreflect.Message); ok {
		if duration, ok := d.Interface().(*durationpb.Duration); ok {
			return duration.AsDuration().String()
		}
	}
	return fmt.Sprint(m.Get(fd).Interface())
}

// limitsProto shows limits in force: every one of them is present.
func limitsProto(l loop.Limits) *loopdv1.Limits {
	return &loopdv1.Limits{
		MaxIterations:               new(clampInt32(l.Iterations)),
		MaxModelCalls:               new(clampInt32(l.ModelCalls)),
		MaxCostUsd:                  new(l.Cost.String()),
		MaxTotalTokens:              new(l.TotalTokens),
		MaxOutputTokens:             new(l.OutputTokens),
		Deadline:                    durationpb.New(l.Deadline),
		MaxWallTime:                 durationpb.New(l.WallTime),
		MaxToolCalls:                new(clampInt32(l.ToolCalls)),
		MaxToolCallsPerAnswer:       new(clampInt32(l.CallsPerAnswer)),
		MaxParallelToolCalls:        new(clampInt32(l.ParallelCalls)),
		MaxIdenticalIterations:      new(clampInt32(l.IdenticalIters)),
		MaxErrorIterations:          new(clampInt32(l.ErrorIters)),
		MaxInvalidIterations:        new(clampInt32(l.InvalidIters)),
		MaxSameCallIterations:       new(clampInt32(l.SameCallIters)),
		MaxCycles:                   new(clampInt32(l.Cycles)),
		MaxFrequentRepeats:          new(clampInt32(l.FrequentRepeats)),
		MaxNearDuplicates:           new(clampInt32(l.NearDuplicates)),
		MaxIterationsWithoutNovelty: new(clampInt32(l.NoveltyIters)),
		MaxCallFailures:             new(clampInt32(l.CallFailures)),
		MaxToolFailures:             new(clampInt32(l.ToolFailures)),
		MaxMonologueAnswers:         new(clampInt32(l.Monologue)),
		FinalAnswerMaxOutputTokens:  new(l.FinalOutput),
		AnswerMaxOutputTokens:       new(l.AnswerOutput),
		MaxReasks:                   new(clampInt32(l.Reasks)),
		ContextStopAt:               new(l.StopAt),
		ContextCompactAt:            new(l.CompactAt),
		MaxCompactions:              new(int32(l.Compactions)),
		NoProgressStop:              new(l.NoProgressStops),
		MaxChildDepth:               new(clampInt32(l.ChildDepth)),
		MaxActiveChildren:           new(clampInt32(l.ActiveChildren)),
		MaxChildren:                 new(clampInt32(l.Children)),
		CountInput:                  new(l.CountInput),
	}
}
