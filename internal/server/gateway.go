package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/api/openapi"
)

const (
	// maxBody is the largest REST body: the largest legal request, an agent with
	// its instructions and some large schemas, fits several times.
	maxBody = 1 << 20
	// maxRunBody is the largest body that creates a run: in base64 its attachments are
	// a third larger than maxInline, and the longest input has 2.4 MB of escapes. The
	// largest OpenAPI document to import fits as well.
	maxRunBody = maxInline/3*4 + 3<<20
	// maxHeader is the largest HTTP or gRPC header block.
	maxHeader = 16 << 10
	// bodyTimeout bounds reading one body, so that slow senders hold nothing.
	bodyTimeout = 30 * time.Second
	// runBodyTimeout is the same for maxRunBody, at 1 Mbit/s.
	runBodyTimeout = 2 * time.Minute
	// writeTimeout bounds one write of an answer. A stream writes often, so it may
	// last for ever while its reader keeps up.
	writeTimeout = 30 * time.Second
)

// newAPI is the REST form of the API, everything under /v1: it calls the gRPC server
// over conn, so that both go through the same interceptors.
func (s *Server) newAPI(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
	plain := &runtime.JSONPb{
		MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
		// Unknown members are refused: a limit with a typing error in its name must
		// not become the default in silence.
		UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: false},
	}
	gateway := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, plain),
		runtime.WithIncomingHeaderMatcher(allowHeader),
		runtime.WithOutgoingHeaderMatcher(answerHeader),
		runtime.WithMetadata(gatewayMetadata),
		runtime.SetQueryParameterParser(strictQuery{}),
		runtime.WithErrorHandler(handleError),
		runtime.WithRoutingErrorHandler(handleRoutingError),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithDisablePathLengthFallback(),
	)
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		loopdv1.RegisterAgentServiceHandler, loopdv1.RegisterRunServiceHandler, loopdv1.RegisterToolServiceHandler,
		loopdv1.RegisterApprovalServiceHandler, loopdv1.RegisterPolicyServiceHandler, loopdv1.RegisterBudgetServiceHandler,
		loopdv1.RegisterUsageServiceHandler, loopdv1.RegisterGuardServiceHandler, loopdv1.RegisterRetentionServiceHandler,
	} {
		if err := register(ctx, gateway, conn); err != nil {
			return nil, fmt.Errorf("register a service: %w", err)
		}
	}
	events := &eventsHandler{server: s, gateway: gateway, json: plain}
	mux := http.NewServeMux()
	mux.Handle("/v1/", gateway)
	mux.Handle("GET /v1/runs/{run}/events:stream", events)
	mux.HandleFunc("GET /v1/runs/{run}/events", func(w http.ResponseWriter, r *http.Request) {
		if acceptsEvents(r) {
			events.ServeHTTP(w, r)
			return
		}
		gateway.ServeHTTP(w, r)
	})
	return mux, nil
}

// newHTTP is everything that the HTTP port serves.
func newHTTP(api, console http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		api.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi.JSON)
	})
	mux.HandleFunc("GET /problems/{reason}", serveProblem)
	if console == nil {
		console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handleRoutingError(r.Context(), nil, nil, w, r, http.StatusNotFound)
		})
	}
	mux.Handle("/", console)

	// No page of another origin may change anything here through a visitor's
	// browser, whatever the deployment does about authentication.
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuseHTTP(w, invalid(fieldError{"Origin", fmt.Sprintf("a page of %q may not call loopd from a browser", r.Header.Get("Origin"))}), http.StatusForbidden)
	}))
	return prepare(guard.Handler(readBody(mux)))
}

// prepare names each request and sets what holds for every answer.
func prepare(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The deadline of the connection's last answer must not cut this one off.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // unsupported only without a socket
		w.Header().Set(headerRequestID, rand.Text())
		w.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, w.Header().Get(headerRequestID)))
		next.ServeHTTP(&timedWriter{ResponseWriter: w}, r)
	})
}

// requestIDKey carries the request's id from the HTTP request to the gRPC call.
type requestIDKey struct{}

// timedWriter gives each write its own deadline.
type timedWriter struct{ http.ResponseWriter }

// Write writes within writeTimeout.
func (t *timedWriter) Write(b []byte) (int, error) {
	err := http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return t.ResponseWriter.Write(b)
}

// Unwrap lets a ResponseController reach the connection.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// large reports whether documents are sent to a path: attachments, what to import,
// results of tools.
func large(path string) bool {
	return path == "/v1/runs" || path == "/v1/tools:importOpenApi" || strings.HasSuffix(path, ":submitToolResults")
}

// readBody reads the whole body before anything is done, and refuses one that is
// too large or not exactly one JSON value. The gateway alone would act on the
// first value and ignore what follows.
func readBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		limit, within := int64(maxBody), bodyTimeout
		if r.Method == http.MethodPost && large(r.URL.Path) {
			limit, within = maxRunBody, runBodyTimeout
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(within)) // unsupported only in tests without a socket
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		_ = control.SetReadDeadline(time.Time{})
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			refuseHTTP(w, refuse(loopdv1.ErrorReason_ERROR_REASON_BODY_INVALID,
				fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)), http.StatusRequestEntityTooLarge)
			return
		}
		if err == nil && len(bytes.TrimSpace(body)) > 0 && !json.Valid(body) {
			err = json.Unmarshal(body, new(any))
		}
		if err != nil {
			refuseHTTP(w, refuse(loopdv1.ErrorReason_ERROR_REASON_BODY_INVALID,
				fmt.Sprintf("the body is not one JSON object: %v", err)), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// allowHeader is the closed list of request headers that become metadata.
func allowHeader(name string) (string, bool) {
	switch key := strings.ToLower(name); key {
	case keyIdempotency, keyLastEventID, keyTraceparent:
		return key, true
	}
	return "", false
}

// answerHeader is the closed list of metadata that become answer headers. The
// request id is there already.
func answerHeader(key string) (string, bool) {
	if key == keyReplayed {
		return textproto.CanonicalMIMEHeaderKey(key), true
	}
	return "", false
}

// gatewayMetadata tells the call the id that the request got.
func gatewayMetadata(_ context.Context, r *http.Request) metadata.MD {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return metadata.Pairs(keyRequestID, id)
}

// strictQuery reads query parameters like the gateway, and refuses one that the
// request has no field for.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse fills msg from the query.
func (p strictQuery) Parse(msg proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	fields := msg.ProtoReflect().Descriptor().Fields()
	for name := range values {
		head, _, _ := strings.Cut(name, ".")
		head, _, _ = strings.Cut(head, "[")
		if fields.ByName(protoreflect.Name(head)) == nil && fields.ByJSONName(head) == nil {
			return fmt.Errorf("query parameter %q: there is no such parameter; see /openapi.json", name)
		}
	}
	return p.DefaultQueryParser.Parse(msg, values, filter)
}
