package postgres

import (
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// use is what one model call came to.
type use struct {
	call      int
	cost      loop.Cost
	usage     loop.Usage
	estimated bool
	saved     loop.USD
	iteration int    // 0: its answer asked for no tools
	tools     string // an array in the form of Postgres, empty for none
}

// addUse adds what an event means for the run's account: a hold, or what became of
// one. calls are the tool calls whose heads changed with it.
func addUse(p *db.AppendEventsParams, body loop.Body, calls []loop.CallHead) {
	switch b := body.(type) {
	case loop.ModelStarted:
		makeHoldColumns(p)
		p.HoldCalls = append(p.HoldCalls, int32(b.Call))
		p.HoldAmounts = append(p.HoldAmounts, int64(b.Hold))
		p.HoldModels = append(p.HoldModels, printable(b.Model))
		p.HoldPurposes = append(p.HoldPurposes, b.Purpose)
		p.HoldPrices = append(p.HoldPrices, printable(b.PriceVersion))
	case loop.ModelAnswered:
		u := use{call: b.Call, cost: b.Cost, usage: b.Usage, estimated: b.Estimated, saved: b.CacheSaved}
		u.iteration, u.tools = takenUp(b.Message, calls)
		u.add(p)
	case loop.ModelFailed:
		use{call: b.Call, cost: b.Cost, usage: b.Usage, estimated: !b.Class.Free()}.add(p)
	}
}

// makeHoldColumns makes room for the first hold of an append. There is hardly ever another.
func makeHoldColumns(p *db.AppendEventsParams) {
	if p.HoldCalls == nil {
		columns(1, &p.HoldCalls)
		columns(1, &p.HoldAmounts)
		columns(1, &p.HoldModels, &p.HoldPurposes, &p.HoldPrices)
	}
}

// makeSettledColumns does the same for settlements.
func makeSettledColumns(p *db.AppendEventsParams) {
	if p.SettledCalls == nil {
		columns(1, &p.SettledCalls, &p.SettledIterations)
		columns(1, &p.SettledCosts, &p.SettledInputs, &p.SettledReads, &p.SettledWrites5m, &p.SettledWrites1h,
			&p.SettledOutputs, &p.SettledReasonings, &p.SettledSaved)
		columns(1, &p.SettledEstimated)
		columns(1, &p.SettledTools)
	}
}

func (u use) add(p *db.AppendEventsParams) {
	makeSettledColumns(p)
	p.SettledCalls = append(p.SettledCalls, int32(u.call))
	p.SettledCosts = append(p.SettledCosts, int64(u.cost.Total()))
	p.SettledInputs = append(p.SettledInputs, u.usage.InputUncached)
	p.SettledReads = append(p.SettledReads, u.usage.CacheRead)
	p.SettledWrites5m = append(p.SettledWrites5m, u.usage.CacheWrite5m)
	p.SettledWrites1h = append(p.SettledWrites1h, u.usage.CacheWrite1h)
	p.SettledOutputs = append(p.SettledOutputs, u.usage.Output)
	p.SettledReasonings = append(p.SettledReasonings, u.usage.Reasoning)
	p.SettledEstimated = append(p.SettledEstimated, u.estimated)
	p.SettledSaved = append(p.SettledSaved, int64(u.saved))
	p.SettledIterations = append(p.SettledIterations, int32(u.iteration))
	p.SettledTools = append(p.SettledTools, u.tools)
}

// takenUp is what an answer asked for: those of its tool calls that the run took up,
// which are among the calls whose heads changed with it.
func takenUp(answer loop.Message, changed []loop.CallHead) (iteration int, tools string) {
	var names []string
	for _, call := range answer.Calls() {
		for _, head := range changed {
			if head.Call.ID == call.ID {
				iteration, names = head.Iteration, append(names, quoted(printable(call.Name)))
			}
		}
	}
	if names == nil {
		return 0, ""
	}
	return iteration, "{" + strings.Join(names, ",") + "}"
}

// quoted is an element of an array in the form of Postgres.
func quoted(s string) string {
	if !strings.ContainsAny(s, `\"`) { // as nearly all
		return `"` + s + `"`
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
