package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/server"
)

// judgeFlags choose the runs that guard test judges.
type judgeFlags struct {
	since, agent, file string
	runs               []string
	labels             map[string]string
}

func (c *client) guardTest() *cobra.Command {
	var flags judgeFlags
	cmd := &cobra.Command{
		Use:   "test POLICY.yaml",
		Short: "Judge runs that have ended by other limits",
		Long: `Judge runs that have ended by other limits: which of them would have been stopped,
when and why, what that would have saved, and which successes it would have cost.

The file has limits and guard_verdicts, as an agent's spec has them. What it does
not set stays as each run had it. Limits may be above the operator's ceilings.

  limits: {max_iterations: 8, max_cost_usd: "0.20"}
  guard_verdicts: {cycle: GUARD_VERDICT_STOP}

With --file the journals come from "guard export", and no server is asked. What
the model would have done after a nudge that it never got is not known: the
answers stand as recorded.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&flags.since, "since", "", "only runs created in the last SPAN (default 7d, unless --run or --file names runs)")
	cmd.Flags().StringVar(&flags.agent, "agent", "", "only runs of this agent")
	cmd.Flags().StringToStringVar(&flags.labels, "label", nil, "only runs with this label, as KEY=VALUE; may be repeated")
	cmd.Flags().StringArrayVar(&flags.runs, "run", nil, "this run; may be repeated")
	cmd.Flags().StringVar(&flags.file, "file", "", `journals that guard export wrote, or "-" for standard input`)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := c.judgeRequest(args[0], flags)
		if err != nil {
			return err
		}
		var resp *loopdv1.TestLimitsResponse
		if flags.file != "" {
			resp, err = c.judgeFile(req, flags.file)
		} else {
			resp, err = c.judgePages(cmd.Context(), req)
		}
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, resp)
		}
		return showJudged(c.env.Stdout, req, resp)
	}
	return cmd
}

// judgeRequest reads the policy and puts the chosen runs beside it.
func (c *client) judgeRequest(file string, flags judgeFlags) (*loopdv1.TestLimitsRequest, error) {
	req := &loopdv1.TestLimitsRequest{}
	if err := c.readYAML(file, req); err != nil {
		return nil, err
	}
	if only := (&loopdv1.TestLimitsRequest{Limits: req.GetLimits(), GuardVerdicts: req.GetGuardVerdicts()}); !proto.Equal(only, req) {
		return nil, usagef("%s: a policy has limits and guard_verdicts; flags say which runs it is tried on", file)
	}
	if flags.file != "" && (flags.since != "" || flags.agent != "" || len(flags.runs)+len(flags.labels) > 0) {
		return nil, usagef("--file judges all journals of the file: choose runs when you export them")
	}
	if len(flags.runs) > 0 && (flags.since != "" || flags.agent != "" || len(flags.labels) > 0) {
		return nil, usagef("--run names runs: leave --since, --agent and --label out")
	}
	req.Agent, req.Labels = agentName(flags.agent), flags.labels
	for _, run := range flags.runs {
		req.Runs = append(req.Runs, runName(run))
	}
	if len(flags.runs) == 0 && flags.file == "" {
		since, err := lookBack("since", firstOf(flags.since, "7d"))
		if err != nil {
			return nil, err
		}
		req.StartTime = timestamppb.New(c.now().Add(-since))
	}
	return req, nil
}

// judgePages has the server judge page after page.
func (c *client) judgePages(ctx context.Context, req *loopdv1.TestLimitsRequest) (*loopdv1.TestLimitsResponse, error) {
	sum := &judgedSum{guards: map[string]*loopdv1.GuardTally{}}
	err := allPages(func(token string) (string, error) {
		req.PageToken = token
		page, err := c.guards.TestLimits(ctx, req)
		if err != nil {
			return "", err
		}
		if page.GetNextPageToken() != "" {
			fmt.Fprintf(c.env.Stderr, "judged %d runs ...\n", sum.all.GetTotals().GetRuns()+page.GetTotals().GetRuns())
		}
		return page.GetNextPageToken(), sum.add(page)
	})
	return sum.all, err
}

// judgeFile judges the journals of a file in this process.
func (c *client) judgeFile(req *loopdv1.TestLimitsRequest, file string) (*loopdv1.TestLimitsResponse, error) {
	if err := protovalidate.Validate(req); err != nil {
		return nil, usagef("the policy: %w", err)
	}
	judge, err := server.NewJudge(req)
	if err != nil {
		return nil, usagef("the policy: %w", err)
	}
	err = c.readJournals(file, func(run loop.RunRef, events []loop.Event) error {
		judge.Add(run, events)
		return nil
	})
	return judge.Response(), err
}

// judgedSum adds pages up.
type judgedSum struct {
	all    *loopdv1.TestLimitsResponse
	guards map[string]*loopdv1.GuardTally
}

func (s *judgedSum) add(page *loopdv1.TestLimitsResponse) error {
	if s.all == nil {
		s.all = &loopdv1.TestLimitsResponse{Totals: &loopdv1.GuardTotals{}}
	}
	s.all.Judgements = append(s.all.Judgements, page.GetJudgements()...)
	s.all.Skipped = append(s.all.Skipped, page.GetSkipped()...)
	t, p := s.all.GetTotals(), page.GetTotals()
	t.Runs, t.Successes, t.Skipped = t.Runs+p.GetRuns(), t.Successes+p.GetSuccesses(), t.Skipped+p.GetSkipped()
	t.Stopped, t.SuccessesCut, t.Unchanged = t.Stopped+p.GetStopped(), t.SuccessesCut+p.GetSuccessesCut(), t.Unchanged+p.GetUnchanged()
	t.Beyond, t.ShorterAnswers = t.Beyond+p.GetBeyond(), t.ShorterAnswers+p.GetShorterAnswers()
	for _, add := range []struct {
		to *string
		by string
	}{{&t.CostUsd, p.GetCostUsd()}, {&t.SavedUsd, p.GetSavedUsd()}, {&t.LostUsd, p.GetLostUsd()}, {&t.WrapUpUsd, p.GetWrapUpUsd()}} {
		if err := addUSD(add.to, add.by); err != nil {
			return err
		}
	}
	for _, g := range page.GetGuards() {
		sum := s.guards[g.GetGuard()]
		if sum == nil {
			sum = &loopdv1.GuardTally{Guard: g.GetGuard()}
			s.guards[g.GetGuard()], s.all.Guards = sum, append(s.all.Guards, sum)
		}
		sum.Stopped, sum.SuccessesCut, sum.Nudged = sum.Stopped+g.GetStopped(), sum.SuccessesCut+g.GetSuccessesCut(), sum.Nudged+g.GetNudged()
		if err := addUSD(&sum.SavedUsd, g.GetSavedUsd()); err != nil {
			return err
		}
	}
	return nil
}

func addUSD(sum *string, amount string) error {
	a, err := loop.ParseUSD(firstOf(*sum, "0"))
	if err != nil {
		return fmt.Errorf("add up amounts: %w", err)
	}
	b, err := loop.ParseUSD(firstOf(amount, "0"))
	if err != nil {
		return fmt.Errorf("add up amounts: %w", err)
	}
	*sum = (a + b).String()
	return nil
}

// showJudged tells a person what a policy would have done.
func showJudged(w io.Writer, req *loopdv1.TestLimitsRequest, resp *loopdv1.TestLimitsResponse) error {
	if len(resp.GetJudgements()) > 0 {
		rows := [][]string{{"", "RUN", "AGENT", "ENDED AS", "WOULD HAVE", "AT ITERATION", "OBSERVED", "LIMIT", "SPENT USD", "SAVED USD", "SOONER BY"}}
		for _, j := range resp.GetJudgements() {
			rows = append(rows, judgedRow(j))
		}
		if err := table(w, rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if err := table(w, totalRows(resp.GetTotals(), choice(req))); err != nil {
		return err
	}
	if len(resp.GetGuards()) > 0 {
		fmt.Fprintln(w)
		rows := [][]string{{"GUARD", "WOULD STOP", "SUCCESSES", "SAVED USD", "WOULD TELL"}}
		for _, g := range resp.GetGuards() {
			rows = append(rows, []string{
				g.GetGuard(), strconv.Itoa(int(g.GetStopped())), strconv.Itoa(int(g.GetSuccessesCut())), g.GetSavedUsd(), strconv.Itoa(int(g.GetNudged())),
			})
		}
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if len(resp.GetSkipped()) > 0 {
		fmt.Fprintln(w, "\nNot judged")
	}
	for _, s := range resp.GetSkipped() {
		fmt.Fprintf(w, "  %s: %s\n", oneLine(s.GetRun()), oneLine(s.GetWhy()))
	}
	return nil
}

// choice says in words which runs were chosen.
func choice(req *loopdv1.TestLimitsRequest) string {
	var words []string
	if req.GetAgent() != "" {
		words = append(words, "of "+req.GetAgent())
	}
	if req.GetStartTime() != nil {
		words = append(words, "since "+clock(req.GetStartTime()))
	}
	return strings.Join(words, " ")
}

func judgedRow(j *loopdv1.GuardJudgement) []string {
	mark, ended := "", word(j.GetState(), "RUN_STATE_")
	if j.GetCutsSuccess() {
		mark = "✗"
	}
	if j.GetStopGuard() != "" {
		ended += " by " + j.GetStopGuard()
	}
	row := []string{mark, j.GetRun(), strings.TrimPrefix(j.GetAgent(), "agents/"), ended}
	iterations := strconv.Itoa(int(j.GetIterations()))
	trip := j.GetTrip()
	if trip == nil {
		would := "gone on, nobody knows how far"
		if !j.GetBeyond() {
			would = count(j.GetShorterAnswers(), "shorter answer")
		}
		return append(row, would, iterations, "-", "-", j.GetCostUsd(), "-", "-")
	}
	would := map[loopdv1.GuardVerdict]string{
		loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP: "wrapped up", loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE: "paused",
	}[trip.GetVerdict()]
	return append(row, firstOf(would, "stopped")+" by "+trip.GetGuard(), fmt.Sprintf("%d of %s", trip.GetIteration(), iterations),
		cut(dash(trip.GetObserved()), 40), cut(dash(trip.GetLimit()), 30), j.GetSpentUsd(), j.GetSavedUsd(),
		j.GetBeforeEnd().AsDuration().Round(time.Second/10).String())
}

// totalRows are the sums, as sentences.
func totalRows(t *loopdv1.GuardTotals, choice string) [][]string {
	others := t.GetStopped() - t.GetSuccessesCut()
	rows := [][]string{
		{"Judged", strings.TrimSpace(fmt.Sprintf("%s %s", count(t.GetRuns(), "run"), choice)) + fmt.Sprintf(": %d succeeded, all cost %s", t.GetSuccesses(), usd(t.GetCostUsd()))},
		{"Stopped", fmt.Sprintf("%s that did not succeed, %s", count(others, "run"), usd(t.GetSavedUsd())+" saved")},
		{"Successes", cutText(t)},
	}
	if t.GetWrapUpUsd() != "0" && t.GetWrapUpUsd() != "" {
		rows = append(rows, []string{"Wrap-ups", "would have cost at most " + usd(t.GetWrapUpUsd())})
	}
	if t.GetUnchanged() > 0 {
		rows = append(rows, []string{"As before", count(t.GetUnchanged(), "run") + " would have been stopped just as before"})
	}
	if t.GetBeyond() > 0 {
		rows = append(rows, []string{"Beyond", count(t.GetBeyond(), "run") + " would have gone on; what they would have done is not known"})
	}
	if t.GetShorterAnswers() > 0 {
		rows = append(rows, []string{"Answers", count(t.GetShorterAnswers(), "answer") + " could not have become so long"})
	}
	return rows
}

func cutText(t *loopdv1.GuardTotals) string {
	if t.GetSuccessesCut() == 0 {
		return "none lost"
	}
	return fmt.Sprintf("✗ %d of %d lost (%.3g %%), %s of work", t.GetSuccessesCut(), t.GetSuccesses(),
		100*float64(t.GetSuccessesCut())/float64(t.GetSuccesses()), usd(t.GetLostUsd()))
}
