package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) ListApprovals(_ context.Context, req *loopdv1.ListApprovalsRequest) (*loopdv1.ListApprovalsResponse, error) {
	if err := f.got(req); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	held := f.inbox[0]
	if len(f.inbox) > 1 {
		f.inbox = f.inbox[1:]
	} else if f.lastLook != nil {
		f.lastLook()
	}
	if held == nil {
		return nil, status.Error(codes.Unavailable, "drain")
	}
	return &loopdv1.ListApprovalsResponse{Approvals: held}, nil
}

func (f *fakeServer) GetApproval(_ context.Context, req *loopdv1.GetApprovalRequest) (*loopdv1.Approval, error) {
	return f.approval, f.got(req)
}

func (f *fakeServer) Approve(_ context.Context, req *loopdv1.ApproveRequest) (*loopdv1.Approval, error) {
	return approved(), f.got(req)
}

func (f *fakeServer) Deny(_ context.Context, req *loopdv1.DenyRequest) (*loopdv1.Approval, error) {
	return approved(), f.got(req)
}

func (f *fakeServer) Answer(_ context.Context, req *loopdv1.AnswerRequest) (*loopdv1.Approval, error) {
	return approved(), f.got(req)
}

const (
	approvalOf1   = runID + ".c2-1"
	fullApproval  = "approvals/" + approvalOf1
	refundArgs    = `{"order":"ORD-4892","amount":129.00,"to":{"iban":"DE02"}}`
	hostileArgs   = "{\"order\":\"ORD-4892\",   \n\n\n  \"amount\":129.00,\"note\":\"\u202etxt\u200b\U000E0041\"}"
	fullQuestion  = "approvals/" + runID + ".c3-1"
	questionAsked = `{"question":"Which parcel?\nBoth are late.","choices":["the red one","2"]}`
)

// pendingApproval is a refund that waits for a person.
func pendingApproval() *loopdv1.Approval {
	return &loopdv1.Approval{
		Name: fullApproval, Kind: loopdv1.Approval_KIND_APPROVE, State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING,
		Run: fullRun, ToolCall: fullCall, Agent: "agents/support", AgentVersion: 3, Tool: "issue_refund",
		Effect: loopdv1.Effect_EFFECT_IRREVERSIBLE, ArgumentsJson: refundArgs, ArgumentsSha256: strings.Repeat("ab", 32),
		Reason: "IRREVERSIBLE", CreateTime: stamp(0), ExpireTime: stamp(24 * time.Hour),
	}
}

// askedQuestion is a question that waits for an answer.
func askedQuestion() *loopdv1.Approval {
	return &loopdv1.Approval{
		Name: fullQuestion, Kind: loopdv1.Approval_KIND_ANSWER, State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING,
		Run: fullRun, ToolCall: fullRun + "/toolCalls/c3-1", Agent: "agents/support", AgentVersion: 3, Tool: "ask_human",
		Effect: loopdv1.Effect_EFFECT_READ_ONLY, ArgumentsJson: questionAsked, CreateTime: stamp(0), ExpireTime: stamp(3 * 24 * time.Hour),
	}
}

// approved is pendingApproval after somebody approved it with other arguments.
func approved() *loopdv1.Approval {
	a := pendingApproval()
	a.State, a.ExpireTime, a.DecideTime = loopdv1.ApprovalState_APPROVAL_STATE_APPROVED, nil, stamp(30*time.Second)
	a.DecidedBy, a.Comment, a.EditedArgumentsJson = "policies/small-refunds", "below 130", `{"order":"ORD-4892","amount":129,"to":{"bic":"X"}}`
	return a
}

func TestApprovalList(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line  []string
		holds []*loopdv1.Approval
		want  *loopdv1.ListApprovalsRequest
	}{
		"approvals.txt": {
			[]string{"--agent", "support", "--tool", "issue_refund", "--run", runID},
			[]*loopdv1.Approval{pendingApproval(), askedQuestion()},
			&loopdv1.ListApprovalsRequest{
				PageSize: 50, State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING, Agent: "agents/support", Tool: "issue_refund", Run: fullRun,
			},
		},
		"approvals_decided.txt": {
			[]string{"--state", "any", "--limit", "0"},
			[]*loopdv1.Approval{approved(), pendingApproval()},
			&loopdv1.ListApprovalsRequest{PageSize: 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.inbox = [][]*loopdv1.Approval{test.holds}
			term.wantCode(t, 0, term.loopd(append([]string{"approval", "list"}, test.line...)...))
			term.wantRequest(t, test.want)
			golden(t, name, term.stdout.String())
		})
	}
}

func TestApprovalShow(t *testing.T) {
	t.Parallel()
	hostile := pendingApproval()
	hostile.ArgumentsJson = hostileArgs
	answered := askedQuestion()
	answered.State, answered.ExpireTime, answered.Answer = loopdv1.ApprovalState_APPROVAL_STATE_APPROVED, nil, "the red one"
	for name, approval := range map[string]*loopdv1.Approval{
		"approval.txt": pendingApproval(), "approval_hostile.txt": hostile, "approval_edited.txt": approved(),
		"question.txt": askedQuestion(), "question_answered.txt": answered,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.approval = approval
			term.wantCode(t, 0, term.loopd("approval", "show", approvalOf1))
			term.wantRequest(t, &loopdv1.GetApprovalRequest{Name: fullApproval})
			golden(t, name, term.stdout.String())
		})
	}
}

func TestApprovalNames(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{fullApproval, approvalOf1, runID + "/c2-1", fullCall} {
		if name, err := approvalName(arg); err != nil || name != fullApproval {
			t.Errorf("%s is %q, %v", arg, name, err)
		}
	}
}

func TestApprovalDecisions(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", 32)
	edited := `{"order":"ORD-4892","amount":100}`
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(edited+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	approve := &loopdv1.ApproveRequest{Name: fullApproval, ExpectedArgumentsHash: hash}
	approveEdited := &loopdv1.ApproveRequest{Name: fullApproval, ExpectedArgumentsHash: hash, EditedArgumentsJson: edited}
	read := &loopdv1.GetApprovalRequest{Name: fullApproval}
	tests := []struct {
		name, stdin string
		line        []string
		code        int
		want        proto.Message
	}{
		{"what was shown", "y\n", []string{"approve", approvalOf1}, 0, approve},
		{"not really", "\n", []string{"approve", approvalOf1}, exitOther, read},
		{"no answer", "", []string{"approve", approvalOf1}, exitOther, read},
		{
			"by hash", "", []string{"approve", runID + "/c2-1", "--arguments-sha256", hash, "--reason", "fine"}, 0,
			&loopdv1.ApproveRequest{Name: fullApproval, ExpectedArgumentsHash: hash, Reason: "fine"},
		},
		{"edited", "y\n", []string{"approve", approvalOf1, "--args", edited}, 0, approveEdited},
		{"edited in a file", "yes\n", []string{"approve", approvalOf1, "--args", file}, 0, approveEdited},
		{"edited, rather not", "no\n", []string{"approve", approvalOf1, "--args", file}, exitOther, read},
		{"edited, by hash", edited, []string{"approve", approvalOf1, "--args", "-", "--arguments-sha256", hash}, 0, approveEdited},
		{"deny", "", []string{"deny", approvalOf1, "--reason", "too much"}, 0, &loopdv1.DenyRequest{Name: fullApproval, Reason: "too much"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.approval = pendingApproval()
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(append([]string{"approval"}, test.line...)...))
			term.wantRequest(t, test.want)
			if want := fullApproval + " issue_refund APPROVED\n"; test.code == 0 && term.stdout.String() != want {
				t.Errorf("stdout %q, want %q", term.stdout.String(), want)
			}
		})
	}
}

// Who approves edited arguments sees theirs, the model's, and what is other.
func TestApproveShowsTheChanges(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.approval = pendingApproval()
	term.stdin = "y\n"
	edited := `{"order":"ORD-4892","amount":100,"to":{"iban":"DE03"},"tags":["a~b/c",{"x":[]}]}`
	term.wantCode(t, 0, term.loopd("approval", "approve", approvalOf1, "--args", edited))
	golden(t, "approve_edited.txt", term.stderr.String())
}

// What cannot be decided any more is said before anybody is asked.
func TestApproveWhatIsDecided(t *testing.T) {
	t.Parallel()
	expired, cancelled := pendingApproval(), pendingApproval()
	expired.State = loopdv1.ApprovalState_APPROVAL_STATE_EXPIRED
	cancelled.State = loopdv1.ApprovalState_APPROVAL_STATE_CANCELLED
	for _, test := range []struct {
		verb     string
		approval *loopdv1.Approval
		want     string
	}{
		{"approve", approved(), "is APPROVED by policies/small-refunds since 2026-11-30 12:00:30Z: the first decision counts"},
		{"approve", expired, "is EXPIRED: nobody decided in time, so that the run went on without it"},
		{"approve", cancelled, "is CANCELLED: its run ended first"},
		{"approve", askedQuestion(), "is a question: loopd approval answer answers it"},
		{"answer", pendingApproval(), "is no question: loopd approval approve or deny decides about it"},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.approval = test.approval
			term.stdin = "y\n"
			term.wantCode(t, exitConflict, term.loopd("approval", test.verb, approvalOf1))
			if want := "loopd: " + test.approval.GetName() + " " + test.want + "\n"; term.stderr.String() != want {
				t.Errorf("stderr %q, want %q", term.stderr.String(), want)
			}
		})
	}
}

func TestApprovalRefusals(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]struct {
		code codes.Code
		exit int
	}{
		"ARGUMENTS_CHANGED":          {codes.FailedPrecondition, exitConflict},
		"APPROVAL_EXPIRED":           {codes.FailedPrecondition, exitConflict},
		"CALL_NOT_AWAITING_APPROVAL": {codes.FailedPrecondition, exitConflict},
		"APPROVAL_NOT_FOUND":         {codes.NotFound, exitNotFound},
		"FIELD_INVALID":              {codes.InvalidArgument, exitUsage},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.err = refusal(t, want.code, "refused for the test", reason)
			term.wantCode(t, want.exit, term.loopd("approval", "approve", approvalOf1, "--arguments-sha256", strings.Repeat("cd", 32)))
			if got := term.stderr.String(); got != "loopd: refused for the test ("+reason+")\n" {
				t.Errorf("stderr %q", got)
			}
		})
	}
}

func TestApprovalAnswer(t *testing.T) {
	t.Parallel()
	text := func(s string) *loopdv1.AnswerRequest {
		return &loopdv1.AnswerRequest{Name: fullQuestion, Answer: &loopdv1.AnswerRequest_Text{Text: s}}
	}
	choice := func(s string) *loopdv1.AnswerRequest {
		return &loopdv1.AnswerRequest{Name: fullQuestion, Answer: &loopdv1.AnswerRequest_Choice{Choice: s}}
	}
	tests := []struct {
		name, stdin string
		line        []string
		code        int
		want        proto.Message
	}{
		{"text", "", []string{"both"}, 0, text("both")},
		{"text from standard input", "both\nof them", []string{"@-"}, 0, text("both\nof them")},
		{"choice", "", []string{"--choice", "the red one"}, 0, choice("the red one")},
		{"asked, by number", "1\n", nil, 0, choice("the red one")},
		{"asked, a choice that is a number", "2\n", nil, 0, choice("2")},
		{"asked, by its words", "the red one\n", nil, 0, choice("the red one")},
		{"asked, in own words", "3\n", nil, 0, text("3")},
		{"asked, no answer", "", nil, exitOther, &loopdv1.GetApprovalRequest{Name: fullQuestion}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.approval = askedQuestion()
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(append([]string{"approval", "answer", runID + "/c3-1"}, test.line...)...))
			term.wantRequest(t, test.want)
		})
	}
}

// interrupted has the terminal's user press Ctrl-C at the last look into the inbox.
func (term *terminal) interrupted() {
	ctx, interrupt := context.WithCancel(term.ctx)
	term.ctx, term.server.lastLook = ctx, interrupt
}

// A watch shows what waits, what comes and what becomes of it, and goes on where the
// server was away. The last look is interrupted.
func TestApprovalWatch(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"table", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.interrupted()
			term.client.terminal = func(io.Writer) bool { return true }
			both := []*loopdv1.Approval{pendingApproval(), askedQuestion()}
			term.server.approval = approved()
			term.server.inbox = [][]*loopdv1.Approval{both[:1], nil, both, slices.Clone(both[1:]), both[1:]}
			term.wantCode(t, exitInterrupted, term.loopd("approval", "watch", "--interval", "1ms", "-o", format))
			golden(t, "inbox_"+format+".txt", term.stdout.String())
			if want := "connection lost; looking again\n"; term.stderr.String() != want {
				t.Errorf("stderr %q, want %q", term.stderr.String(), want)
			}
		})
	}
}

func TestApprovalWatchGivesUp(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.inbox = [][]*loopdv1.Approval{nil}
	term.wantCode(t, exitOther, term.loopd("approval", "watch", "--interval", "1ms"))
	if got := strings.Count(term.stderr.String(), "connection lost"); got != 3 {
		t.Errorf("looked again %d times, want 3; stderr:\n%s", got, term.stderr.String())
	}
}

func TestTimeLeft(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"none": -time.Second, "59s": 59*time.Second + 900*time.Millisecond, "1m 0s": time.Minute, "47h 59m": 48*time.Hour - time.Second,
		"6d 3h": 6*24*time.Hour + 3*time.Hour + time.Minute,
	} {
		if got := left(stamp(d), noon); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
	if got := left(nil, noon); got != "-" {
		t.Errorf("no deadline is %q", got)
	}
}

func TestArgumentsAreShownExactly(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		`{"a":1.00,"a":2}`:             "{\n  \"a\": 1.00,\n  \"a\": 2\n}",
		"{\"a\":\"\u202e\U000E0041\"}": "{\n  \"a\": \"\\u202e\\udb40\\udc41\"\n}",
		"no JSON \x1b[2J\n\ttab":       "no JSON \\u001b[2J\n\ttab",
		`{"a":"é 😀 \u0007"}`:           "{\n  \"a\": \"é 😀 \\u0007\"\n}",
	} {
		if diff := cmp.Diff(want, layOut(args)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
}

func TestChangesNeedJSON(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := showChanges(&b, "Changes", "{", "{}"); err == nil {
		t.Error("half a document was compared")
	}
	if err := showChanges(&b, "Changes", `{"a": 1}`, `{"a":1}`); err != nil || b.String() != "\nChanges\n  none\n" {
		t.Errorf("white space is a change: %q, %v", b.String(), err)
	}
}
