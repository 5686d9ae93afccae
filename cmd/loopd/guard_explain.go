package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) guardExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain RUN",
		Short: "Explain every verdict of a guard that changed a run, with its proof",
		Args:  cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := c.runs.GetRun(cmd.Context(), &loopdv1.GetRunRequest{Name: runName(args[0])})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, run)
		}
		return explainRun(c.env.Stdout, run)
	}
	return cmd
}

// explainRun writes what the guards did to a run, oldest first.
func explainRun(w io.Writer, run *loopdv1.Run) error {
	rows := [][]string{{"Run", run.GetName()}, {"State", stateBy(run)}, {"Cost", spent(run)}, {"Used", used(run)}}
	if err := table(w, rows); err != nil {
		return err
	}
	trips := run.GetTrips()
	if len(trips) == 0 {
		fmt.Fprintf(w, "\nNo guard has changed this run.\n")
		return nil
	}
	var before *loopdv1.GuardTrip
	for i, trip := range trips {
		fmt.Fprintf(w, "\n%d of %d: %s, in event %d at %s\n", i+1, len(trips), oneLine(trip.GetGuard()), trip.GetSeq(), clock(trip.GetTime()))
		if err := explainTrip(w, run, trip, before); err != nil {
			return err
		}
		before = trip
	}
	return nil
}

// stateBy is the state of a run, and the guard that ended it if one did.
func stateBy(run *loopdv1.Run) string {
	state := stateOf(run)
	if guard := run.GetStop().GetGuard(); guard != "" {
		state += " by guard " + guard
	}
	return state
}

func explainTrip(w io.Writer, run *loopdv1.Run, trip, before *loopdv1.GuardTrip) error {
	rows := [][]string{{"What", trip.GetMessage()}, {"Observed", dash(trip.GetObserved())}, {"Limit", limitOf(trip)}}
	rows = append(rows, []string{"Verdict", verdictOf(trip)}, []string{"Asked", dash(trip.GetPhase()) + ", iteration " + strconv.Itoa(int(trip.GetIteration()))})
	if trip.GetTold() != "" {
		rows = append(rows, []string{"Told", trip.GetTold()})
	}
	if trip.GetFalsePositive() {
		why := ""
		if trip.GetReportReason() != "" {
			why = ": " + trip.GetReportReason()
		}
		rows = append(rows, []string{"Reported", "as a false positive by " + dash(trip.GetReportedBy()) + why})
	}
	if err := indentedTable(w, "  ", rows); err != nil {
		return err
	}
	if err := sideBySide(w, trip.GetEvidence()); err != nil {
		return err
	}
	if err := showGauges(w, trip, before); err != nil {
		return err
	}
	if trip.GetAdvice() != "" {
		fmt.Fprintf(w, "\n  What to change\n    %s\n", oneLine(trip.GetAdvice()))
	}
	if !trip.GetFalsePositive() {
		fmt.Fprintf(w, "\n  If it was wrong\n    loopd guard report %s %d --reason WHY\n", run.GetName(), trip.GetSeq())
	}
	return nil
}

// limitOf is the limit with the field that sets it.
func limitOf(trip *loopdv1.GuardTrip) string {
	limit := dash(trip.GetLimit())
	if trip.GetLimitField() != "" {
		limit += ", set by " + trip.GetLimitField()
	}
	return limit
}

// verdictOf says what the verdict did, and what the guard does where nobody has it do
// something else.
func verdictOf(trip *loopdv1.GuardTrip) string {
	own := trip.GetDefaultVerdict() != loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED
	text := word(trip.GetVerdict(), "GUARD_VERDICT_") + ": " + map[loopdv1.GuardVerdict]string{
		loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE:   "the model was told",
		loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP: "one last answer without tools, then the end",
		loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE:   "it waits for a higher limit",
		loopdv1.GuardVerdict_GUARD_VERDICT_STOP:    "the end, at once",
	}[trip.GetVerdict()]
	if trip.GetVerdict() == loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE && own && trip.GetTold() == "" {
		text = "NUDGE: only observed"
	}
	if own {
		text += "; so the agent wants it, by itself the guard would " + strings.ReplaceAll(strings.ToLower(word(trip.GetDefaultVerdict(), "GUARD_VERDICT_")), "_", " ")
	}
	return text
}

// sideBySide writes the calls of a proof. What is equal has the same letter.
func sideBySide(w io.Writer, evidence []*loopdv1.Evidence) error {
	if len(evidence) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n  Calls side by side: the same letter, the same thing\n")
	var args, results letters
	rows := [][]string{{"ITERATION", "CALL", "TOOL", "", "ARGUMENTS", "HASH", "", "RESULT", "HASH", "NOTE"}}
	for _, e := range evidence {
		rows = append(rows, []string{
			strconv.Itoa(int(e.GetIteration())), dash(e.GetCallId()), dash(e.GetTool()),
			args.of(e.GetTool() + e.GetArgumentsHash()), dash(cut(e.GetArguments(), 40)), dash(cut(e.GetArgumentsHash(), 12)),
			results.of(e.GetResultHash()), dash(cut(e.GetResult(), 40)), dash(cut(e.GetResultHash(), 12)), dash(cut(e.GetNote(), 40)),
		})
	}
	return indentedTable(w, "    ", rows)
}

// letters name things in the order in which they come.
type letters struct{ seen []string }

// of is the letter of a thing; behind z numbers follow.
func (l *letters) of(thing string) string {
	if thing == "" {
		return "-"
	}
	i := 0
	for i < len(l.seen) && l.seen[i] != thing {
		i++
	}
	if i == len(l.seen) {
		l.seen = append(l.seen, thing)
	}
	if i >= 26 {
		return strconv.Itoa(i + 1)
	}
	return string(rune('A' + i))
}

// barWidth is how long the bar of a guard is that is at its limit.
const barWidth = 20

// showGauges writes what the guards measured that measured anything.
func showGauges(w io.Writer, trip, before *loopdv1.GuardTrip) error {
	if len(trip.GetGauges()) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n  All guards at that moment\n")
	if same := func(a, b *loopdv1.GuardGauge) bool { return proto.Equal(a, b) }; slices.EqualFunc(trip.GetGauges(), before.GetGauges(), same) {
		fmt.Fprintf(w, "    as in event %d\n", before.GetSeq())
		return nil
	}
	var rows [][]string
	var quiet []string
	for _, g := range trip.GetGauges() {
		if g.GetObserved() == 0 && g.GetGuard() != trip.GetGuard() {
			quiet = append(quiet, oneLine(g.GetGuard()))
			continue
		}
		share, mark := 0.0, ""
		if g.GetLimit() > 0 {
			share = g.GetObserved() / g.GetLimit()
		}
		if g.GetGuard() == trip.GetGuard() {
			mark = "◀"
		}
		rows = append(rows, []string{
			g.GetGuard(), bar(share), fmt.Sprintf("%3.0f %%", 100*share),
			fmt.Sprintf("%s of %s %s", number(g.GetObserved()), number(g.GetLimit()), g.GetUnit()), mark,
		})
	}
	if err := indentedTable(w, "    ", rows); err != nil {
		return err
	}
	if len(quiet) > 0 {
		fmt.Fprintf(w, "    nothing: %s\n", strings.Join(quiet, ", "))
	}
	return nil
}

// bar draws a share of a whole. A little is more than nothing.
func bar(share float64) string {
	full := int(math.Round(min(max(share, 0), 1) * barWidth))
	if share > 0 {
		full = max(full, 1)
	}
	return strings.Repeat("█", full) + strings.Repeat("·", barWidth-full)
}

// number writes a measure without digits that nobody reads.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
