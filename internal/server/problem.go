package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// problem is the body of a refused REST request (RFC 9457).
type problem struct {
	Type      string            `json:"type"`
	Title     string            `json:"title"`
	Status    int               `json:"status"`
	Detail    string            `json:"detail,omitempty"`
	Reason    string            `json:"reason"`
	RequestID string            `json:"request_id,omitempty"`
	Retryable bool              `json:"retryable"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Errors    []problemField    `json:"errors,omitempty"`

	retryAfter int64 // seconds; 0: soon, if Retryable
}

// problemField is one field that breaks its rule: by its path as the protos write
// it, and by its JSON pointer in the body.
type problemField struct {
	Field   string `json:"field"`
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// problemOf is the REST form of a status.
func problemOf(st *status.Status) problem {
	row := rowOf(reasonOf(st))
	p := problem{
		Type: "/problems/" + word(row.reason), Title: row.title, Status: row.http,
		Detail: st.Message(), Reason: word(row.reason), Retryable: row.retryable,
	}
	if st.Code() != row.code { // made by gRPC itself or by the gateway
		p.Status = runtime.HTTPStatusFromCode(st.Code())
		p.Retryable = st.Code() == codes.Unavailable
	}
	if st.Code() == codes.DeadlineExceeded {
		p.Title, p.Retryable = "no answer within the time that the request gave", true
		p.Detail = "loopd did not answer within the request's Grpc-Timeout; whether it has changed anything is not known: give it longer, and repeat a change with the same Idempotency-Key"
	}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			p.Metadata = d.GetMetadata()
		case *errdetails.RequestInfo:
			p.RequestID = d.GetRequestId()
		case *errdetails.RetryInfo:
			p.Retryable, p.retryAfter = true, int64(math.Ceil(d.GetRetryDelay().AsDuration().Seconds()))
		case *errdetails.BadRequest:
			for _, f := range d.GetFieldViolations() {
				p.Errors = append(p.Errors, problemField{Field: f.GetField(), Pointer: pointer(f.GetField()), Detail: f.GetDescription()})
			}
		}
	}
	return p
}

// reasonOf reads a status' reason. A status without one was made before loopd saw
// the request: by the gateway, which could not read it, or by gRPC.
func reasonOf(st *status.Status) loopdv1.ErrorReason {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return loopdv1.ErrorReason(loopdv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
		}
	}
	switch st.Code() {
	case codes.InvalidArgument:
		if !strings.HasPrefix(st.Message(), "proto:") { // the decoder's word, so about the body
			return loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID
		}
		return loopdv1.ErrorReason_ERROR_REASON_BODY_INVALID
	case codes.NotFound, codes.Unimplemented:
		return loopdv1.ErrorReason_ERROR_REASON_ROUTE_NOT_FOUND
	default:
		return loopdv1.ErrorReason_ERROR_REASON_INTERNAL
	}
}

// pointer writes a path of the protos as a JSON pointer (RFC 6901), with the names
// that JSON uses: "spec.tools[2].input_schema" is "/spec/tools/2/inputSchema", and
// a map's key stays as it is: "labels[\"a.b\"]" is "/labels/a.b".
func pointer(field string) string {
	var b strings.Builder
	for field != "" {
		var token string
		switch {
		case strings.HasPrefix(field, `["`):
			token, field, _ = strings.Cut(field[2:], `"]`)
		case strings.HasPrefix(field, "["):
			token, field, _ = strings.Cut(field[1:], "]")
		default:
			end := strings.IndexAny(field[1:], ".[") + 1
			if end == 0 {
				end = len(field)
			}
			token, field = camel(field[:end]), field[end:]
		}
		field = strings.TrimPrefix(field, ".")
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(token))
	}
	return b.String()
}

// camel writes a proto field's name as JSON does.
func camel(name string) string {
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, "")
}

// writeProblem answers a request with a problem. A problem that has no request id
// takes that of the answer.
func writeProblem(w http.ResponseWriter, p problem) {
	if p.RequestID == "" {
		p.RequestID = w.Header().Get(headerRequestID)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.Retryable {
		h.Set("Retry-After", strconv.FormatInt(max(1, p.retryAfter), 10))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(p.encode()) // if it fails the client is gone: nobody is left to tell
}

// encode is the problem as JSON.
func (p problem) encode() []byte {
	body, err := json.Marshal(p)
	if err != nil { // strings, numbers and maps of strings always encode
		return []byte("{}")
	}
	return body
}

// refuseHTTP answers a request that never reached gRPC.
func refuseHTTP(w http.ResponseWriter, r *refusal, httpStatus int) {
	p := problemOf(toStatus(r, w.Header().Get(headerRequestID)))
	p.Status = httpStatus
	writeProblem(w, p)
}

// bodyFields are the fields that bodies are, by the path they are sent to.
var bodyFields = map[string]string{"/v1/agents": "/agent", "/v1/tools": "/tool", "/v1/policies": "/policy", "/v1/budgets": "/budget"}

// handleError is the gateway's way to answer with an error.
func handleError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Del("Trailer")
	w.Header().Del("Transfer-Encoding")
	p := problemOf(status.Convert(err))
	for path, body := range bodyFields { // there the body is a field of the request
		if strings.HasPrefix(r.URL.Path, path) {
			for i, f := range p.Errors {
				p.Errors[i].Pointer = strings.TrimPrefix(f.Pointer, body)
			}
		}
	}
	writeProblem(w, p)
}

// handleRoutingError is the gateway's way to answer a path it does not know.
func handleRoutingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int) {
	detail := r.Method + " " + r.URL.Path + ": there is no such path; see /openapi.json"
	if httpStatus == http.StatusMethodNotAllowed {
		detail = r.Method + " " + r.URL.Path + ": the path exists, but not with this method; see /openapi.json"
	}
	refuseHTTP(w, refuse(loopdv1.ErrorReason_ERROR_REASON_ROUTE_NOT_FOUND, detail), httpStatus)
}

// serveProblem is the page that a problem's type leads to.
func serveProblem(w http.ResponseWriter, r *http.Request) {
	asked := r.PathValue("reason")
	for _, row := range errorTable() {
		if word(row.reason) != asked {
			continue
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintf(w, "%s\n\n%s.\n\n%s\n\ngRPC %s, HTTP %d, %s\n", asked, row.title, row.help, row.code, row.http, repeatable(row.retryable))
		return
	}
	handleRoutingError(r.Context(), nil, nil, w, r, http.StatusNotFound)
}

func repeatable(retryable bool) string {
	if retryable {
		return "the same request may succeed later"
	}
	return "the same request will fail again"
}
