package loop

import (
	"slices"
	"strconv"
	"time"
)

// limitUnit is what the whole numbers of a limitField count.
type limitUnit int

const (
	countUnit limitUnit = iota
	moneyUnit           // USD
	timeUnit            // time.Duration
	shareUnit           // 1/shareParts of a whole
)

// shareParts is how finely a share is told, so that no raise is too small to be one.
const shareParts = 1_000_000_000

// limitField is one field of Limits by its name in the API, as a whole number.
type limitField struct {
	name string
	unit limitUnit
	low  int64 // the smallest useful value
	get  func(Limits) int64
	set  func(*Limits, int64)
}

// limitFields are the limits of guards that a backtest asks again.
func limitFields() []limitField {
	return []limitField{
		whole("deadline", timeUnit, int64(time.Second), func(l *Limits) *time.Duration { return &l.Deadline }),
		whole("max_cost_usd", moneyUnit, int64(MilliUSD), func(l *Limits) *USD { return &l.Cost }),
		whole("max_total_tokens", countUnit, 1, func(l *Limits) *int64 { return &l.TotalTokens }),
		whole("max_output_tokens", countUnit, 1, func(l *Limits) *int64 { return &l.OutputTokens }),
		whole("max_model_calls", countUnit, 1, func(l *Limits) *int { return &l.ModelCalls }),
		whole("max_iterations", countUnit, 1, func(l *Limits) *int { return &l.Iterations }),
		shareOf("context_stop_at", func(l *Limits) *float64 { return &l.StopAt }),
		whole("max_tool_calls", countUnit, 1, func(l *Limits) *int { return &l.ToolCalls }),
		whole("max_identical_iterations", countUnit, 2, func(l *Limits) *int { return &l.IdenticalIters }),
		whole("max_same_call_iterations", countUnit, 2, func(l *Limits) *int { return &l.SameCallIters }),
		whole("max_cycles", countUnit, 2, func(l *Limits) *int { return &l.Cycles }),
		whole("max_frequent_repeats", countUnit, 2, func(l *Limits) *int { return &l.FrequentRepeats }),
		whole("max_near_duplicates", countUnit, 2, func(l *Limits) *int { return &l.NearDuplicates }),
		whole("max_iterations_without_novelty", countUnit, 2, func(l *Limits) *int { return &l.NoveltyIters }),
		whole("max_monologue_answers", countUnit, 2, func(l *Limits) *int { return &l.Monologue }),
		whole("max_invalid_iterations", countUnit, 1, func(l *Limits) *int { return &l.InvalidIters }),
		whole("max_call_failures", countUnit, 1, func(l *Limits) *int { return &l.CallFailures }),
		whole("max_tool_failures", countUnit, 1, func(l *Limits) *int { return &l.ToolFailures }),
		whole("max_error_iterations", countUnit, 1, func(l *Limits) *int { return &l.ErrorIters }),
		whole("max_wall_time", timeUnit, int64(time.Second), func(l *Limits) *time.Duration { return &l.WallTime }),
	}
}

// otherLimits are the limits that no guard asks again in a backtest: what a model would
// have made of more room is not recorded.
func otherLimits() []limitField {
	return []limitField{
		whole("max_tool_calls_per_answer", countUnit, 1, func(l *Limits) *int { return &l.CallsPerAnswer }),
		whole("max_parallel_tool_calls", countUnit, 1, func(l *Limits) *int { return &l.ParallelCalls }),
		whole("final_answer_max_output_tokens", countUnit, 16, func(l *Limits) *int64 { return &l.FinalOutput }),
		whole("answer_max_output_tokens", countUnit, 16, func(l *Limits) *int64 { return &l.AnswerOutput }),
		whole("max_reasks", countUnit, 0, func(l *Limits) *int { return &l.Reasks }),
		shareOf("context_compact_at", func(l *Limits) *float64 { return &l.CompactAt }),
		whole("max_compactions", countUnit, 0, func(l *Limits) *int { return &l.Compactions }),
		whole("max_child_depth", countUnit, 0, func(l *Limits) *int { return &l.ChildDepth }),
		whole("max_active_children", countUnit, 0, func(l *Limits) *int { return &l.ActiveChildren }),
		whole("max_children", countUnit, 0, func(l *Limits) *int { return &l.Children }),
	}
}

// allLimits are all limits that are no switch. More is always wider.
func allLimits() []limitField { return slices.Concat(limitFields(), otherLimits()) }

// limitNamed finds a limit by its name in the API.
func limitNamed(name string) (limitField, bool) {
	all := allLimits()
	if i := slices.IndexFunc(all, func(f limitField) bool { return f.name == name }); i >= 0 {
		return all[i], true
	}
	return limitField{}, false
}

func shareOf(name string, at func(*Limits) *float64) limitField {
	return limitField{
		name, shareUnit, shareParts / 20,
		func(l Limits) int64 { return int64(*at(&l)*shareParts + 0.5) },
		func(l *Limits, v int64) { *at(l) = float64(v) / shareParts },
	}
}

func whole[N ~int | ~int64](name string, unit limitUnit, low int64, at func(*Limits) *N) limitField {
	return limitField{
		name, unit, low,
		func(l Limits) int64 { return int64(*at(&l)) },
		func(l *Limits, v int64) { *at(l) = N(v) },
	}
}

// guard is the guard that holds runs to the limit.
func (f limitField) guard() GuardInfo {
	for _, g := range Guards() {
		if slices.Contains(g.Fields, f.name) {
			return g
		}
	}
	return GuardInfo{}
}

// text is a value as the API's JSON has it, without quotes.
func (f limitField) text(v int64) string {
	switch f.unit {
	case moneyUnit:
		return USD(v).String()
	case timeUnit:
		return strconv.FormatFloat(time.Duration(v).Seconds(), 'f', -1, 64) + "s"
	case shareUnit:
		return strconv.FormatFloat(float64(v)/shareParts, 'f', -1, 64)
	default:
		return strconv.FormatInt(v, 10)
	}
}

// roundUp is the smallest number that people would write and that is not below v.
func (f limitField) roundUp(v int64) int64 {
	v = max(v, f.low)
	switch f.unit {
	case timeUnit:
		return roundUpTime(time.Duration(v))
	case shareUnit:
		const twentieth = shareParts / 20
		return (v + twentieth - 1) / twentieth * twentieth
	default:
		return roundUpCount(v)
	}
}

// roundUpCount rounds to two digits of which the second is 0, 2 or 5. Up to 10 every
// number is one that people write.
func roundUpCount(v int64) int64 {
	power := int64(1)
	for v > 100*power {
		power *= 10
	}
	for _, digits := range []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80} {
		if digits*power >= v {
			return digits * power
		}
	}
	return 100 * power
}

// roundUpTime rounds to what a clock shows. Above a day it rounds to days.
func roundUpTime(d time.Duration) int64 {
	for _, unit := range []struct {
		of    time.Duration
		times []int64
	}{
		{time.Second, []int64{1, 2, 3, 4, 5, 10, 15, 20, 30, 45}},
		{time.Minute, []int64{1, 2, 3, 4, 5, 10, 15, 20, 30, 45}},
		{time.Hour, []int64{1, 2, 3, 4, 6, 8, 12}},
	} {
		for _, n := range unit.times {
			if rounded := time.Duration(n) * unit.of; rounded >= d {
				return int64(rounded)
			}
		}
	}
	const day = int64(24 * time.Hour)
	return (int64(d) + day - 1) / day * day
}
