package loop

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// EncodeBody writes a body as the journal keeps it: valid UTF-8 JSON. Nothing is
// escaped for HTML, as that would change the bytes of native messages; of raw
// JSON, only white space between tokens is lost.
func EncodeBody(b Body) (kind string, body []byte, err error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(b); err != nil {
		return "", nil, fmt.Errorf("encode %s event: %w", b.Kind(), err)
	}
	return b.Kind(), bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// DecodeBody reads a body of the journal. Members that this version does not
// know are ignored and absent ones are zero, so that old journals decode for
// ever. A kind that this version does not know is ErrUnknownKind: the run
// belongs to a newer loopd and is left alone.
func DecodeBody(kind string, body []byte) (Body, error) {
	switch kind {
	case "created":
		return decode[Created](kind, body)
	case "claimed":
		return decode[Claimed](kind, body)
	case "suspended":
		return decode[Suspended](kind, body)
	case "model_started":
		return decode[ModelStarted](kind, body)
	case "model_answered":
		return decode[ModelAnswered](kind, body)
	case "model_failed":
		return decode[ModelFailed](kind, body)
	case "fell_back":
		return decode[FellBack](kind, body)
	case "input_counted":
		return decode[InputCounted](kind, body)
	case "rate_waited":
		return decode[RateWaited](kind, body)
	case "call_refused":
		return decode[CallRefused](kind, body)
	case "approval_requested":
		return decode[ApprovalRequested](kind, body)
	case "approval_decided":
		return decode[ApprovalDecided](kind, body)
	case "call_started":
		return decode[CallBegun](kind, body)
	case "call_handed_out":
		return decode[CallHandedOut](kind, body)
	case "result_submitted":
		return decode[ResultSubmitted](kind, body)
	case "child_finished":
		return decode[ChildFinished](kind, body)
	case "call_polled":
		return decode[CallPolled](kind, body)
	case "call_finished":
		return decode[CallFinished](kind, body)
	case "call_in_doubt":
		return decode[CallDoubted](kind, body)
	case "call_resolved":
		return decode[CallResolved](kind, body)
	case "doubt_told":
		return decode[DoubtTold](kind, body)
	case "call_verified":
		return decode[CallVerified](kind, body)
	case "child_cancelled":
		return decode[ChildCancelled](kind, body)
	case "tripped":
		return decode[Tripped](kind, body)
	case "answer_rejected":
		return decode[AnswerRejected](kind, body)
	case "answer_accepted":
		return decode[AnswerAccepted](kind, body)
	case "answer_checked":
		return decode[AnswerChecked](kind, body)
	case "checkpoint_judged":
		return decode[CheckpointJudged](kind, body)
	case "compacted":
		return decode[Compacted](kind, body)
	case "pause_requested":
		return decode[PauseRequested](kind, body)
	case "resumed":
		return decode[Resumed](kind, body)
	case "account_refused":
		return decode[AccountRefused](kind, body)
	case "cancel_requested":
		return decode[CancelRequested](kind, body)
	case "finished":
		return decode[Finished](kind, body)
	}
	return nil, fmt.Errorf("event kind %q: %w", kind, ErrUnknownKind)
}

func decode[B Body](kind string, body []byte) (Body, error) {
	var b B
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("decode %s event: %w", kind, err)
	}
	return b, nil
}

// marshal is JSON of a value that always has one.
func marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("loop: %v", err)) // a guard that cannot speak fails closed
	}
	return string(b)
}
