package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

func (c *client) runPause() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause RUN",
		Short: "Pause a run at its next boundary",
		Long: `Pause a run at its next boundary: what is under way ends first, then nothing
starts until the run is resumed. Its active time stands still meanwhile; its wall
time runs on and ends it if nobody resumes it.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := c.runs.PauseRun(cmd.Context(), &loopdv1.PauseRunRequest{Name: runName(args[0]), Reason: reason})
		if err != nil {
			return err
		}
		if run.GetState() == loopdv1.RunState_RUN_STATE_RUNNING {
			fmt.Fprintln(c.env.Stderr, "it pauses when what is under way has ended")
		}
		return c.writeState(run)
	}
	return cmd
}

func (c *client) runResume() *cobra.Command {
	var raises []string
	var input, reason, requestID string
	cmd := &cobra.Command{
		Use:   "resume RUN [--raise LIMIT=VALUE ...] [--input TEXT]",
		Short: "Resume a paused run, with raised limits if need be",
		Long: `Resume a paused run. One that a guard paused goes on only if its limit is raised;
run show names the limit. A guard that looks for progress is content with an input,
which the model reads before it goes on. What the run has spent counts on.

  loopd run resume RUN --raise max_cost_usd=2 --raise deadline=20m
  loopd run resume RUN --input "The order is in the new warehouse."

Without a raise that is needed it is refused with exit code 6.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringArrayVar(&raises, "raise", nil, "a limit of the run and its new value, as max_iterations=20; may be repeated")
	cmd.Flags().StringVar(&input, "input", "", `a word for the model, or "-" for standard input`)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	cmd.Flags().StringVar(&requestID, "request-id", "", "makes the command safe to repeat")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limits, err := raisedLimits(raises)
		if err != nil {
			return err
		}
		if input == "-" {
			if input, err = c.readText("@-"); err != nil {
				return err
			}
		}
		run, err := c.runs.ResumeRun(cmd.Context(), &loopdv1.ResumeRunRequest{
			Name: runName(args[0]), Limits: limits, Input: input, Reason: reason, RequestId: requestID,
		})
		if err != nil {
			return err
		}
		return c.writeState(run)
	}
	return cmd
}

// writeState writes where a run stands, in one line.
func (c *client) writeState(run *loopdv1.Run) error {
	if c.output == "json" {
		return writeJSON(c.env.Stdout, run)
	}
	_, err := fmt.Fprintf(c.env.Stdout, "%s %s\n", run.GetName(), stateOf(run))
	return err
}

// raisedLimits reads limits as they are written on the command line; nil if there are
// none.
func raisedLimits(raises []string) (*loopdv1.Limits, error) {
	if len(raises) == 0 {
		return nil, nil //nolint:nilnil // absent, as in the request
	}
	limits := &loopdv1.Limits{}
	m := limits.ProtoReflect()
	for _, raise := range raises {
		name, value, found := strings.Cut(raise, "=")
		field := limitField(name)
		switch {
		case !found:
			return nil, usagef("--raise %s: write LIMIT=VALUE, such as max_cost_usd=2", raise)
		case field == nil:
			return nil, usagef("--raise %s: there is no limit %q; there are %s", raise, name, strings.Join(limitNames(), ", "))
		case m.Has(field):
			return nil, usagef("--raise %s: %s is there twice", raise, name)
		}
		v, err := limitValue(field, value)
		if err != nil {
			return nil, usagef("--raise %s: %v", raise, err)
		}
		m.Set(field, v)
	}
	return limits, nil
}

// limitField is a limit by its name in the API; nil if there is none.
func limitField(name string) protoreflect.FieldDescriptor {
	return (&loopdv1.Limits{}).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
}

func limitNames() []string {
	var names []string
	for fields, i := (&loopdv1.Limits{}).ProtoReflect().Descriptor().Fields(), 0; i < fields.Len(); i++ {
		names = append(names, string(fields.Get(i).Name()))
	}
	slices.Sort(names)
	return names
}

// limitValue reads the value of a limit.
func limitValue(field protoreflect.FieldDescriptor, text string) (protoreflect.Value, error) {
	switch field.Kind() {
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(text, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), wrong(err, "a whole number")
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(text, 10, 64)
		return protoreflect.ValueOfInt64(n), wrong(err, "a whole number")
	case protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(text, 64)
		return protoreflect.ValueOfFloat64(f), wrong(err, "a number such as 0.85")
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(text)
		return protoreflect.ValueOfBool(b), wrong(err, "true or false")
	case protoreflect.MessageKind:
		d, err := time.ParseDuration(text)
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), wrong(err, "a time such as 20m or 90s")
	default:
		_, err := loop.ParseUSD(text)
		return protoreflect.ValueOfString(text), err
	}
}

// wrong says what was expected where err says that it was not there.
func wrong(err error, expected string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("expected %s", expected)
}

// resumeCommand raises limits by half. Whoever uses it may know better; a value above
// a ceiling is refused, and the refusal names the ceiling.
func resumeCommand(run string, fields []string, inForce func(field string) string) string {
	var command strings.Builder
	command.WriteString("loopd run resume " + run)
	for _, field := range fields {
		command.WriteString(" --raise " + field + "=" + suggest(field, inForce(field)))
	}
	return command.String()
}

// highestShare is the ceiling of shares of a context window that operators start with.
const highestShare = 0.95

// suggest is half as much again of a limit.
func suggest(field, inForce string) string {
	limit := limitField(field)
	if limit == nil { // of a newer server
		return "VALUE"
	}
	v, err := limitValue(limit, inForce)
	if err != nil {
		return "VALUE"
	}
	switch limit.Kind() {
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.FormatInt(v.Int()+max(1, v.Int()/2), 10)
	case protoreflect.DoubleKind:
		return strconv.FormatFloat(min(highestShare, v.Float()*1.5), 'g', 3, 64)
	case protoreflect.MessageKind:
		d, _ := time.ParseDuration(inForce) // it was read before
		return (d + d/2).String()
	default:
		cost, _ := loop.ParseUSD(inForce) // it was read before
		return (cost + max(loop.MilliUSD, cost/2)).String()
	}
}

// limitText is a limit in force, as the command line takes it.
func limitText(limits *loopdv1.Limits, field string) string {
	fd := limitField(field)
	if fd == nil {
		return ""
	}
	v := limits.ProtoReflect().Get(fd)
	if fd.Kind() == protoreflect.MessageKind {
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
	}
	return fmt.Sprint(v.Interface())
}

// raiseMoves say what paused a run, and the commands that let it go on.
func raiseMoves(run *loopdv1.Run) []string {
	var moves, fields []string
	var deadline string
	words := true
	for _, a := range run.GetRequiredActions() {
		if a.GetKind() != loopdv1.RequiredAction_KIND_RAISE {
			continue
		}
		moves = append(moves, fmt.Sprintf("Guard %s paused the run: %s (observed: %s)", a.GetGuard(), a.GetReason(), dash(a.GetObserved())))
		deadline = clock(a.GetDeadline())
		words = words && a.GetTakesInput()
		if a.GetLimitField() != "" {
			fields = append(fields, a.GetLimitField())
		}
	}
	if len(moves) == 0 {
		return nil
	}
	moves = append(moves, "Without a word until "+deadline+" it gives a last answer and stops:")
	if len(fields) > 0 {
		moves = append(moves, resumeCommand(run.GetName(), fields, func(field string) string { return limitText(run.GetLimits(), field) }))
	}
	if words {
		moves = append(moves, "loopd run resume "+run.GetName()+" --input TEXT")
	}
	return append(moves, "loopd run cancel "+run.GetName())
}
