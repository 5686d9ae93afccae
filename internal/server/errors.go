package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// errorDomain is the domain of every ErrorInfo that loopd sends.
const errorDomain = "loopd.dev"

// errorRow says all there is to say about one reason.
type errorRow struct {
	reason    loopdv1.ErrorReason
	code      codes.Code
	http      int
	retryable bool   // the same request may succeed later
	title     string // the same for every request
	help      string // for the page at /problems
	sentinels []error
}

// errorTable is the only place that knows which error has which gRPC code, reason
// and HTTP status. A sentinel that several nouns share, such as loop.ErrNotFound,
// is given its reason by the handler, which knows the noun; see named.
func errorTable() []errorRow {
	return slices.Concat(requestErrors(), registryErrors(), runErrors(), ownErrors())
}

// requestErrors are about what a request says, whatever is stored.
func requestErrors() []errorRow {
	return []errorRow{
		{reason: loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "A field of the request is invalid", help: "Each entry of errors names a field, what is wrong with it and how to mend it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_BODY_INVALID, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "The body of the request is invalid", help: "Send one JSON object of at most 1 MiB (13 MiB to create a run with attachments, to submit results or to import a document), with only the members that the API's description at /openapi.json lists."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "The page token is invalid", help: "Send the next_page_token of the page before, unchanged and with the same other fields, or none for the first page."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_LIMIT_ABOVE_CEILING, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "A limit is above the operator's ceiling", help: "Ask for at most the ceiling, or have the operator of this loopd raise it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_MODEL_UNKNOWN, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "No configured provider serves the model", help: "Models are named provider/model. Correct the name, or have the operator of this loopd configure the provider."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_MODEL_UNPRICED, code: codes.FailedPrecondition, http: http.StatusUnprocessableEntity,
			title: "The model has no complete price", help: "Without a price no budget could hold, so such a model is never called. Correct its name, or have the operator of this loopd add its price to the price book."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_ROUTE_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such path", help: "The API's paths and their methods are described at /openapi.json."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_KEY_REUSED, code: codes.AlreadyExists, http: http.StatusUnprocessableEntity,
			sentinels: []error{postgres.ErrKeyReused},
			title:     "The request id was used for another request", help: "A request id, over REST the header Idempotency-Key, belongs to one request for 24 hours. Use a fresh one for each new request."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_REQUEST_IN_PROGRESS, code: codes.Aborted, http: http.StatusConflict, retryable: true,
			title: "A request with this request id is still being handled", help: "Repeat the request a little later, with the same request id."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_AGENT_NESTING_INVALID, code: codes.InvalidArgument, http: http.StatusBadRequest,
			title: "Agents start each other in a way that is not allowed", help: "Agents may not start each other in a circle, nor deeper than limits.max_child_depth. The metadata path names them in order."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_MCP_SERVER_FAILED, code: codes.Unavailable, http: http.StatusBadGateway, retryable: true,
			title: "The MCP server did not tell its tools", help: "Check the URL and the headers, and that the server can be reached from loopd."},
	}
}

// registryErrors are about agents, tools, policies and budgets.
func registryErrors() []errorRow {
	return []errorRow{
		{reason: loopdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such agent", help: "List the agents with GET /v1/agents, or create it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_AGENT_VERSION_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			sentinels: []error{postgres.ErrVersionNotFound},
			title:     "The agent has no such version", help: "Leave the version out for the newest one."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_AGENT_EXISTS, code: codes.AlreadyExists, http: http.StatusConflict,
			sentinels: []error{postgres.ErrAgentExists},
			title:     "The agent id is taken", help: "An id is never given out again, not even when its agent is archived. Choose another, or update the agent."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_AGENT_ARCHIVED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrAgentArchived},
			title:     "The agent is archived", help: "An archived agent takes no changes and starts no runs. Create another agent."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such tool", help: "List the tools with GET /v1/tools, or create it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_VERSION_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			sentinels: []error{postgres.ErrToolVersionNotFound},
			title:     "The tool has no such version", help: "Leave the version out for the newest one."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_EXISTS, code: codes.AlreadyExists, http: http.StatusConflict,
			sentinels: []error{postgres.ErrToolExists},
			title:     "The tool id is taken", help: "An id is never given out again, not even when its tool is archived. Choose another, or update the tool."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_ARCHIVED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrToolArchived},
			title:     "The tool is archived", help: "An archived tool takes no changes, and no new agent version may refer to it. Create another tool."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_CALLABLE, code: codes.FailedPrecondition, http: http.StatusConflict,
			title: "Only a run may call the tool", help: "HTTP endpoints and tools of MCP servers can be called outside runs, unless their effect is EFFECT_IRREVERSIBLE. Start a run of an agent that has the tool."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_REPEATABLE, code: codes.FailedPrecondition, http: http.StatusConflict,
			title: "The call was sent before and is not sent again", help: "It changes something, so loopd sends it at most once for each request id. Ask the tool's owner what became of the metadata idempotency_key; use a fresh request id for another call."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_POLICY_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such policy", help: "List the policies with GET /v1/policies, or create it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_POLICY_VERSION_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			sentinels: []error{postgres.ErrPolicyVersionNotFound},
			title:     "The policy has no such version", help: "Leave the version out for the newest one."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_POLICY_EXISTS, code: codes.AlreadyExists, http: http.StatusConflict,
			sentinels: []error{postgres.ErrPolicyExists},
			title:     "The policy id is taken", help: "An id is never given out again, not even when its policy is archived. Choose another, or update the policy."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_POLICY_ARCHIVED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrPolicyArchived},
			title:     "The policy is archived", help: "An archived policy takes no changes. Create another policy."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_BUDGET_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such budget", help: "List the budgets with GET /v1/budgets, or create it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_BUDGET_EXISTS, code: codes.AlreadyExists, http: http.StatusConflict,
			sentinels: []error{postgres.ErrBudgetExists},
			title:     "The budget id is taken", help: "An id is never given out again, not even when its budget is archived. Choose another, or update the budget."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_BUDGET_ARCHIVED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrBudgetArchived},
			title:     "The budget is archived", help: "An archived budget takes no changes. Create another budget."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_BUDGET_CHANGED, code: codes.Aborted, http: http.StatusConflict,
			title: "Somebody else changed the budget first", help: "Read the budget again, and repeat the change with the etag that it has now, or without one."},
	}
}

// runErrors are about runs, their calls, and what is said about those.
func runErrors() []errorRow {
	return []errorRow{
		{reason: loopdv1.ErrorReason_ERROR_REASON_BUDGET_EXHAUSTED, code: codes.ResourceExhausted, http: http.StatusTooManyRequests,
			title: "A budget has no room for the run", help: "Its first model call could pass what is left of a budget that it shares with other runs. Wait for the metadata reset_time, or have somebody raise the budget with POST /v1/budgets/{budget}:raise."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such run", help: "List the runs with GET /v1/runs."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TRIP_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "No guard tripped in that event", help: "Read the run: its trips have the seq to name."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "The run has no such tool call", help: "List the tool calls with GET /v1/runs/{run}/toolCalls."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_RUN_FINISHED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrRunFinished},
			title:     "The run has ended", help: "An ended run never changes. Create another run."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_PAUSED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrNotPaused},
			title:     "The run is not paused", help: "Only a paused run can be resumed: its state is RUN_STATE_PAUSED, or its required_actions have one of KIND_RAISE."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_LIMIT_NOT_RAISED, code: codes.FailedPrecondition, http: http.StatusConflict,
			title: "The limit that paused the run was not raised", help: "The metadata name the field to raise, its value in force and what the guard observed. What the run has spent is never forgotten, so that it would stop again at once."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_RUN_CANCELLING, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrRunCancelling},
			title:     "The run is being cancelled", help: "A cancel was accepted and the run will end. Create another run."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_IN_DOUBT, code: codes.FailedPrecondition, http: http.StatusConflict,
			title: "The tool call is not in doubt", help: "Only a call in doubt can be resolved. Read the call to see where it stands."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_APPROVAL, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrNotWaiting},
			title:     "The tool call does not await approval", help: "The first decision counts. Read the call to see where it stands."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_ARGUMENTS_CHANGED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrStaleHash},
			title:     "The decision names other arguments than the call has", help: "Read the call again, and decide on the arguments that it has now."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_FOUND, code: codes.NotFound, http: http.StatusNotFound,
			title: "There is no such approval", help: "List the approvals with GET /v1/approvals."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_APPROVAL_EXPIRED, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrExpired},
			title:     "The approval has expired", help: "Nobody decided in time, so the call counts as denied, and the run goes on without it."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT, code: codes.FailedPrecondition, http: http.StatusConflict,
			title: "The tool call does not await this result", help: "Read the run: its required_actions list the calls that await a result, with the attempt to name."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_RESULT_CONFLICT, code: codes.FailedPrecondition, http: http.StatusConflict,
			sentinels: []error{postgres.ErrConflict},
			title:     "Another result was taken before", help: "A call has one result for each attempt, and the first one counts."},
	}
}

// ownErrors are loopd's own. The last row stands for every reason that has none.
func ownErrors() []errorRow {
	return []errorRow{
		{reason: loopdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, code: codes.Unavailable, http: http.StatusServiceUnavailable, retryable: true,
			sentinels: []error{postgres.ErrUnavailable, postgres.ErrSchema},
			title:     "The database cannot be reached", help: "Repeat the request later. With a request id it is safe to repeat at any time."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_OVERLOADED, code: codes.Unavailable, http: http.StatusServiceUnavailable, retryable: true,
			title: "loopd has more to do than it can", help: "Repeat the request after the time in Retry-After, with the same request id. Requests that only read are refused first, then new runs; what is said to runs that exist never is."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_TENANT_QUEUE_FULL, code: codes.ResourceExhausted, http: http.StatusTooManyRequests, retryable: true,
			title: "Too many runs of the tenant wait for a worker", help: "Repeat the request after the time in Retry-After, with the same request id, or have the operator of this loopd raise --tenant-max-queued."},
		{reason: loopdv1.ErrorReason_ERROR_REASON_INTERNAL, code: codes.Internal, http: http.StatusInternalServerError,
			title: "loopd failed", help: "Give the request_id to the operator of this loopd: the detail is in its log."},
	}
}

// rowOf finds the row of a reason; one that has none is INTERNAL's.
func rowOf(reason loopdv1.ErrorReason) errorRow {
	table := errorTable()
	for _, row := range table {
		if row.reason == reason {
			return row
		}
	}
	return table[len(table)-1]
}

// word is a reason as clients see it: without the prefix of the enum.
func word(reason loopdv1.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), "ERROR_REASON_")
}

// fieldError is one field that breaks its rule. The field is a path in the
// request, as in the protos: "limits.max_iterations".
type fieldError struct{ field, detail string }

// refusal is an error whose text is meant for the client.
type refusal struct {
	reason   loopdv1.ErrorReason
	detail   string
	fields   []fieldError
	metadata map[string]string
	retry    time.Duration // after which the same request may succeed; 0: nobody knows
}

// Error is the detail.
func (r *refusal) Error() string { return r.detail }

// refuse builds a refusal. The metadata are pairs of name and value.
func refuse(reason loopdv1.ErrorReason, detail string, metadata ...string) *refusal {
	r := &refusal{reason: reason, detail: detail, metadata: make(map[string]string, len(metadata)/2)}
	for i := 0; i+1 < len(metadata); i += 2 {
		r.metadata[metadata[i]] = metadata[i+1]
	}
	return r
}

// invalid refuses a request for its fields.
func invalid(fields ...fieldError) *refusal {
	details := make([]string, len(fields))
	for i, f := range fields {
		details[i] = f.field + ": " + f.detail
	}
	return &refusal{reason: loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID, detail: strings.Join(details, "; "), fields: fields, metadata: map[string]string{}}
}

// classify finds what the client is told about an error; nil if the error is none
// that clients are told about.
func classify(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	for _, row := range errorTable() {
		for _, sentinel := range row.sentinels {
			if errors.Is(err, sentinel) {
				return refuse(row.reason, row.title+". "+row.help)
			}
		}
	}
	return nil
}

// toStatus is the gRPC form of an error: a status with ErrorInfo, RequestInfo and,
// for fields, BadRequest. What the table does not know is INTERNAL, and its text
// stays here. Statuses and the end of a call's context keep their own codes.
func toStatus(err error, requestID string) *status.Status {
	r := classify(err)
	if r == nil {
		if st, ok := status.FromError(err); ok {
			return st
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return status.FromContextError(err)
		}
		r = refuse(loopdv1.ErrorReason_ERROR_REASON_INTERNAL, "loopd failed; the detail is in its log under the request's id")
	}
	details := []protoadapt.MessageV1{
		&errdetails.ErrorInfo{Reason: word(r.reason), Domain: errorDomain, Metadata: r.metadata},
		&errdetails.RequestInfo{RequestId: requestID},
	}
	if len(r.fields) > 0 {
		bad := &errdetails.BadRequest{}
		for _, f := range r.fields {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f.field, Description: f.detail})
		}
		details = append(details, bad)
	}
	if r.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
	}
	st := status.New(rowOf(r.reason).code, r.detail)
	detailed, err := st.WithDetails(details...)
	if err != nil {
		return st // only text that is not UTF-8 gets here: the code still tells
	}
	return detailed
}

// named says which resource an error is about, and gives loop.ErrNotFound, which
// all nouns share, the reason of this one.
func named(err error, notFound loopdv1.ErrorReason, key, name string) error {
	if err == nil {
		return nil
	}
	r := classify(err)
	switch {
	case r == nil && errors.Is(err, loop.ErrNotFound):
		row := rowOf(notFound)
		r = refuse(notFound, row.title+". "+row.help)
	case r == nil:
		return err
	}
	if r.metadata[key] == "" {
		r.metadata[key] = name
		r.detail = name + ": " + r.detail
	}
	return fmt.Errorf("%w: %w", r, err)
}
