package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) guardSuggest() *cobra.Command {
	var since, tolerance string
	var most int
	var ladder bool
	cmd := &cobra.Command{
		Use:   "suggest AGENT",
		Short: "Propose limits for an agent, from what its runs needed",
		Long: `Propose limits for an agent: for each the smallest that would have cut at most the
tolerated share of its past successes. Every value is tried on the journals of
the runs, alone, as "guard test" does it.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&since, "since", "30d", "only runs created in the last SPAN")
	cmd.Flags().StringVar(&tolerance, "tolerance", "1%", "share of successes that a proposal may cut, such as 1% or 0.01")
	cmd.Flags().IntVar(&most, "max-runs", 200, "runs to look at, the newest first; at most 1000")
	cmd.Flags().BoolVar(&ladder, "ladder", false, "show every value that was tried")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		back, err := lookBack("since", since)
		if err != nil {
			return err
		}
		share, err := shareOf("tolerance", tolerance)
		if err != nil {
			return err
		}
		if most < 1 || most > 1000 {
			return usagef("--max-runs %d: it is from 1 to 1000", most)
		}
		start := timestamppb.New(c.now().Add(-back))
		resp, err := c.guards.SuggestLimits(cmd.Context(), &loopdv1.SuggestLimitsRequest{
			Agent: agentName(args[0]), StartTime: start, Tolerance: &share, MaxRuns: int32(most),
		})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, resp)
		}
		return showSuggestions(c.env.Stdout, resp, "since "+clock(start), ladder)
	}
	return cmd
}

// shareOf reads a share of a whole, from 0 to a half.
func shareOf(flag, text string) (float64, error) {
	part, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 0.5) {
		return 0, usagef("--%s %s: it is a share from 0 to 50%%, such as 1%% or 0.01", flag, text)
	}
	return v, nil
}

// showSuggestions shows what is proposed and why, what stays, and what to paste.
func showSuggestions(w io.Writer, resp *loopdv1.SuggestLimitsResponse, since string, ladder bool) error {
	err := table(w, [][]string{
		{"Agent", fmt.Sprintf("%s, version %d", resp.GetAgent(), resp.GetAgentVersion())},
		{"Looked at", fmt.Sprintf("%s %s: %d succeeded", count(resp.GetRuns(), "run"), since, resp.GetSuccesses())},
		{"Tolerated", fmt.Sprintf("%.3g %% of the successes cut, by each limit alone", 100*resp.GetTolerance())},
	})
	if err != nil {
		return err
	}
	if resp.GetNote() != "" {
		fmt.Fprintf(w, "\n%s\n", oneLine(resp.GetNote()))
	}
	rows := [][]string{{"LIMIT", "NOW", "PROPOSED", "MOST USED", "SUCCESSES CUT", "STOPS SOONER", "SAVED USD", "WHY"}}
	var stay []string
	for _, s := range resp.GetSuggestions() {
		switch {
		case ladder:
			rows = append(rows, ladderRows(s)...)
		case s.GetProposed() != s.GetCurrent() || s.GetRunsEnded() > 0:
			rows = append(rows, suggestionRow(s))
		default:
			stay = append(stay, s.GetField()+" "+s.GetCurrent())
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if len(stay) > 0 {
		fmt.Fprintf(w, "\nStay as they are: %s\n", oneLine(strings.Join(stay, ", ")))
	}
	for _, s := range resp.GetSkipped() {
		fmt.Fprintf(w, "\nNot looked at: %s: %s\n", oneLine(s.GetRun()), oneLine(s.GetWhy()))
	}
	return showSnippet(w, resp)
}

// suggestionRow is a limit with what the proposed value would have done.
func suggestionRow(s *loopdv1.LimitSuggestion) []string {
	row := []string{s.GetField(), s.GetCurrent(), s.GetProposed(), dash(s.GetUsed())}
	for _, c := range s.GetLadder() {
		if c.GetValue() == s.GetProposed() {
			return append(append(row, candidateCells(c)...), s.GetWhy())
		}
	}
	return append(row, "-", "-", "-", s.GetWhy())
}

// ladderRows are a limit with all values that were tried.
func ladderRows(s *loopdv1.LimitSuggestion) [][]string {
	var rows [][]string
	for i, c := range s.GetLadder() {
		row, why := []string{"", "", c.GetValue(), ""}, ""
		if i == 0 {
			row[0], row[1], row[3] = s.GetField(), s.GetCurrent(), dash(s.GetUsed())
		}
		if c.GetValue() == s.GetProposed() {
			why = "◀ " + s.GetWhy()
		}
		rows = append(rows, append(append(row, candidateCells(c)...), why))
	}
	return rows
}

func candidateCells(c *loopdv1.LimitCandidate) []string {
	return []string{fmt.Sprintf("%d (%.3g %%)", c.GetSuccessesCut(), 100*c.GetShare()), strconv.Itoa(int(c.GetStopped())), c.GetSavedUsd()}
}

// showSnippet writes the proposals as an agent's file has them.
func showSnippet(w io.Writer, resp *loopdv1.SuggestLimitsResponse) error {
	if resp.GetProposed() == nil {
		return nil
	}
	fmt.Fprintf(w, "\nTo paste into the agent's spec, after a look at what it would have done together (loopd guard test)\n  limits:\n")
	for _, s := range resp.GetSuggestions() {
		if s.GetProposed() == s.GetCurrent() {
			continue
		}
		value := s.GetProposed()
		if s.GetField() == "max_cost_usd" { // the API takes money as text
			value = strconv.Quote(value)
		}
		fmt.Fprintf(w, "    %s: %s\n", oneLine(s.GetField()), oneLine(value))
	}
	return nil
}
