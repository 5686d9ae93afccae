package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// showApproval shows a person all that a decision is about: who asks, for what and
// why, until when, the exact arguments and the hash that stands for them.
func showApproval(w io.Writer, a *loopdv1.Approval, now time.Time) error {
	rows := [][]string{
		{"Approval", a.GetName()},
		{"State", standing(a, now)},
		{"Asks for", asksFor(a)},
		{"Agent", fmt.Sprintf("%s, version %d", a.GetAgent(), a.GetAgentVersion())},
		{"Run", a.GetRun()},
		{"Tool", a.GetTool() + ", " + word(a.GetEffect(), "EFFECT_")},
		{"Asked", clock(a.GetCreateTime())},
	}
	if a.GetReason() != "" {
		rows = append(rows, []string{"Why", a.GetReason()})
	}
	if a.GetDecideTime() != nil {
		rows = append(rows, []string{"Decided", clock(a.GetDecideTime()) + by(a.GetDecidedBy())})
	}
	if a.GetComment() != "" {
		rows = append(rows, []string{"Comment", a.GetComment()})
	}
	if a.GetArgumentsSha256() != "" {
		rows = append(rows, []string{"SHA-256", a.GetArgumentsSha256()})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if text, choices := question(a); text != "" {
		fmt.Fprintf(w, "\nQuestion\n%s\n", indent(visible(text)))
		for i, choice := range choices {
			fmt.Fprintf(w, "  %d. %s\n", i+1, visible(oneLine(choice)))
		}
	} else {
		fmt.Fprintf(w, "\nArguments\n%s\n", indent(layOut(a.GetArgumentsJson())))
	}
	if a.GetEditedArgumentsJson() != "" {
		fmt.Fprintf(w, "\nSent in their place\n%s\n", indent(layOut(a.GetEditedArgumentsJson())))
		if err := showChanges(w, "Changes", a.GetArgumentsJson(), a.GetEditedArgumentsJson()); err != nil {
			return err
		}
	}
	if a.GetAnswer() != "" {
		fmt.Fprintf(w, "\nAnswer\n%s\n", indent(visible(a.GetAnswer())))
	}
	return nil
}

// standing is the state of an approval, with how much time there is to decide.
func standing(a *loopdv1.Approval, now time.Time) string {
	state := word(a.GetState(), "APPROVAL_STATE_")
	if a.GetState() == loopdv1.ApprovalState_APPROVAL_STATE_PENDING {
		state += fmt.Sprintf(", time left %s, until %s", left(a.GetExpireTime(), now), clock(a.GetExpireTime()))
	}
	return state
}

// asksFor is what a person has to do, in one word.
func asksFor(a *loopdv1.Approval) string {
	if a.GetKind() == loopdv1.Approval_KIND_ANSWER {
		return "answer"
	}
	return "approval"
}

// decisions are the commands that decide.
func decisions(a *loopdv1.Approval) []string {
	id := strings.TrimPrefix(a.GetName(), "approvals/")
	if a.GetKind() == loopdv1.Approval_KIND_ANSWER {
		return []string{"loopd approval answer " + id}
	}
	return []string{"loopd approval approve " + id, "loopd approval deny " + id + " --reason WHY"}
}

// by names who decided.
func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

// left is how much time there is until a deadline.
func left(until *timestamppb.Timestamp, now time.Time) string {
	if until == nil {
		return "-"
	}
	d := until.AsTime().Sub(now)
	const day = 24 * time.Hour
	switch {
	case d <= 0:
		return "none"
	case d >= 2*day:
		return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%ds", d/time.Second)
	}
}

// awaits refuses an approval about which nobody can decide in this way any more.
// The server would as well; this says it before a person reads and answers.
func awaits(a *loopdv1.Approval, kind loopdv1.Approval_Kind) error {
	var why string
	switch a.GetState() {
	case loopdv1.ApprovalState_APPROVAL_STATE_APPROVED, loopdv1.ApprovalState_APPROVAL_STATE_DENIED:
		why = fmt.Sprintf("is %s%s since %s: the first decision counts", word(a.GetState(), "APPROVAL_STATE_"), by(a.GetDecidedBy()), clock(a.GetDecideTime()))
	case loopdv1.ApprovalState_APPROVAL_STATE_EXPIRED:
		why = "is EXPIRED: nobody decided in time, so that the run went on without it"
	case loopdv1.ApprovalState_APPROVAL_STATE_CANCELLED:
		why = "is CANCELLED: its run ended first"
	}
	switch {
	case why != "":
	case a.GetKind() == kind:
		return nil
	case kind == loopdv1.Approval_KIND_ANSWER:
		why = "is no question: loopd approval approve or deny decides about it"
	default:
		why = "is a question: loopd approval answer answers it"
	}
	return &exitError{code: exitConflict, err: fmt.Errorf("%s %s", a.GetName(), why)}
}
