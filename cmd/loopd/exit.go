package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// The exit codes of loopd. Scripts branch on them, so they never change.
const (
	exitOK          = 0
	exitOther       = 1   // anything without a code of its own
	exitUsage       = 2   // the command line or a file is wrong
	exitStopped     = 3   // a guard stopped the run
	exitAuth        = 4   // not signed in, or not allowed
	exitNotFound    = 5   // no such run, agent or call
	exitConflict    = 6   // exists already, or is in the wrong state
	exitTimeout     = 7   // --timeout passed before the run ended
	exitApproval    = 8   // the run waits for a person
	exitFailed      = 9   // loopd or a provider could not go on
	exitCancelled   = 10  // somebody cancelled the run
	exitInterrupted = 130 // Ctrl-C, as shells report it
)

// exitError ends the program with a code. Without err there is nothing left to
// say: the command has shown it.
type exitError struct {
	code int
	err  error
}

// Error says what is wrong, or how the program ends.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap gives the error that led here.
func (e *exitError) Unwrap() error { return e.err }

// usagef is an error in what the user wrote.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitCode is the code that the program ends with after err.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	switch status.Code(err) {
	case codes.InvalidArgument:
		return exitUsage
	case codes.Unauthenticated, codes.PermissionDenied:
		return exitAuth
	case codes.NotFound:
		return exitNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return exitConflict
	case codes.Canceled:
		return exitInterrupted
	default:
		return exitOther
	}
}

// report writes err for a person, with what a server said about single fields,
// and returns the code to exit with.
func report(w io.Writer, err error) int {
	code := exitCode(err)
	if e, ok := errors.AsType[*exitError](err); err == nil || ok && e.err == nil {
		return code
	}
	refused, ok := status.FromError(err)
	if !ok {
		fmt.Fprintf(w, "loopd: %s\n", clean(err.Error()))
		return code
	}
	message, reason := refused.Message(), ""
	for _, detail := range refused.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason = " (" + info.GetReason() + ")"
		}
	}
	fmt.Fprintf(w, "loopd: %s%s\n", clean(message), clean(reason))
	for _, detail := range refused.Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			fmt.Fprintf(w, "  %s: %s\n", clean(v.GetField()), clean(v.GetDescription()))
		}
	}
	return code
}

// outcome turns how a run ended, or that it waits for a person, into an exit
// code. A run that is still on its way is no error.
func outcome(run *loopdv1.Run) error {
	switch run.GetState() {
	case loopdv1.RunState_RUN_STATE_STOPPED:
		return &exitError{code: exitStopped}
	case loopdv1.RunState_RUN_STATE_FAILED:
		return &exitError{code: exitFailed}
	case loopdv1.RunState_RUN_STATE_CANCELLED:
		return &exitError{code: exitCancelled}
	case loopdv1.RunState_RUN_STATE_REQUIRES_ACTION:
		return &exitError{code: exitApproval}
	default:
		return nil
	}
}
