package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// Metadata names, which are header names over REST.
const (
	headerRequestID = "X-Request-Id"
	keyRequestID    = "x-request-id"
	keyIdempotency  = "idempotency-key"
	keyReplayed     = "idempotency-replayed"
	keyLastEventID  = "last-event-id"
	keyTraceparent  = "traceparent"
)

// call is one gRPC call on its way through the interceptors. Unary and streamed
// calls use the same one, so that they cannot differ: name and log the call, catch
// panics, validate what comes in, turn errors into statuses.
type call struct {
	server  *Server
	method  string
	id      string
	started time.Time
}

// unary is the interceptor of unary calls.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	c := s.begin(ctx, info.FullMethod)
	if err := grpc.SetHeader(ctx, metadata.Pairs(keyRequestID, c.id)); err != nil {
		return nil, fmt.Errorf("set the request id header: %w", err)
	}
	defer func() { err = c.end(ctx, recover(), err) }()
	if err := s.gate.admit(c.method); err != nil {
		return nil, err
	}
	if err := s.validate(req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// stream is the interceptor of streamed calls.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	c := s.begin(stream.Context(), info.FullMethod)
	if err := stream.SetHeader(metadata.Pairs(keyRequestID, c.id)); err != nil {
		return fmt.Errorf("set the request id header: %w", err)
	}
	defer func() { err = c.end(stream.Context(), recover(), err) }()
	if err := s.gate.admit(c.method); err != nil {
		return err
	}
	return handler(srv, &validatedStream{ServerStream: stream, server: s})
}

// validatedStream checks each message that comes in.
type validatedStream struct {
	grpc.ServerStream
	server *Server
}

// RecvMsg receives and validates.
func (v *validatedStream) RecvMsg(m any) error {
	if err := v.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return v.server.validate(m)
}

// begin names a call. Only the gateway may choose the id: it has already told it
// to its client.
func (s *Server) begin(ctx context.Context, method string) *call {
	c := &call{server: s, method: method, started: time.Now()}
	if throughGateway(ctx) {
		c.id = first(ctx, keyRequestID)
	}
	if c.id == "" {
		c.id = rand.Text()
	}
	return c
}

// end is the last word on a call: it makes the status and the one line of log.
func (c *call) end(ctx context.Context, panicked any, err error) error {
	attrs := []slog.Attr{
		slog.String("method", c.method), slog.String("request_id", c.id), slog.Duration("duration", time.Since(c.started)),
	}
	if panicked != nil {
		err = fmt.Errorf("panic: %v", panicked)
		attrs = append(attrs, slog.String("stack", string(debug.Stack())))
	}
	if err == nil {
		c.server.log.LogAttrs(ctx, levelOf(c.method, codes.OK), "call", append(attrs, slog.String("code", codes.OK.String()))...)
		return nil
	}
	st := toStatus(err, c.id)
	attrs = append(attrs, slog.String("code", st.Code().String()), slog.String("reason", word(reasonOf(st))), slog.Any("error", err))
	level := levelOf(c.method, st.Code())
	if reasonOf(st) == loopdv1.ErrorReason_ERROR_REASON_OVERLOADED { // there are many, and a metric counts them
		level = slog.LevelInfo
	}
	c.server.log.LogAttrs(ctx, level, "call", attrs...)
	return st.Err()
}

// levelOf keeps probes out of the log and brings loopd's own faults to the top.
func levelOf(method string, code codes.Code) slog.Level {
	switch {
	case code == codes.Internal || code == codes.Unknown:
		return slog.LevelError
	case code == codes.Unavailable:
		return slog.LevelWarn
	case !strings.HasPrefix(method, "/loopd."):
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// validate checks a message against the rules of its proto.
func (s *Server) validate(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("validate a %T: not a proto message", m)
	}
	err := s.validator.Validate(msg)
	if err == nil {
		return nil
	}
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return fmt.Errorf("validate %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
	}
	fields := make([]fieldError, len(broken.Violations))
	for i, v := range broken.Violations {
		fields[i] = fieldError{field: protovalidate.FieldPathString(v.Proto.GetField()), detail: explain(v)}
	}
	return invalid(fields...)
}

// explain is a violation in words. A pattern says little to people, so the value
// that broke it is quoted.
func explain(v *protovalidate.Violation) string {
	message := v.Proto.GetMessage()
	if s, ok := v.FieldValue.Interface().(string); ok && strings.HasSuffix(v.Proto.GetRuleId(), ".pattern") {
		return fmt.Sprintf("%q %s", excerpt(s), message)
	}
	return message
}

// excerpt is the start of a text, for error messages.
func excerpt(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// requests are the messages that clients send, for the validator to compile its
// rules before the first of them arrives.
func requests() []protoreflect.MessageDescriptor {
	var all []protoreflect.MessageDescriptor
	for _, service := range services() {
		for i := range service.Methods().Len() {
			all = append(all, service.Methods().Get(i).Input())
		}
	}
	return all
}

// apiFiles are the protos with services.
func apiFiles() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		loopdv1.File_loopd_v1_agent_service_proto, loopdv1.File_loopd_v1_run_service_proto, loopdv1.File_loopd_v1_tool_service_proto,
		loopdv1.File_loopd_v1_approval_service_proto, loopdv1.File_loopd_v1_policy_service_proto, loopdv1.File_loopd_v1_budget_service_proto,
		loopdv1.File_loopd_v1_usage_service_proto, loopdv1.File_loopd_v1_guard_service_proto, loopdv1.File_loopd_v1_retention_service_proto,
	}
}

// throughGateway reports whether a call came over REST: no client of another
// process can come by the in-memory connection.
func throughGateway(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr.Network() == "bufconn"
}

// source is the door that a call came through, for metrics and the run's record.
func source(ctx context.Context) string {
	if throughGateway(ctx) {
		return "rest"
	}
	return "grpc"
}

// first is the first value of a metadata name, or "".
func first(ctx context.Context, key string) string {
	if values := metadata.ValueFromIncomingContext(ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// tenant is whose data a call sees. There is one until calls carry an identity:
// then this function, and no other place, reads it from the metadata.
func tenant(context.Context) string { return "default" }

// subject is who a call comes from, for the record of what people decide. loopd does
// not authenticate its callers yet, and what a request says of itself proves nothing,
// so everybody is the same one. When calls carry credentials this function, and no
// other place, reads whose they are.
func subject(context.Context) string { return "unauthenticated" }

// errDraining ends streams when the server shuts down. The client connects again
// and goes on after the last event it has.
var errDraining = status.Error(codes.Unavailable, "this loopd is shutting down: connect again")

// errSlow ends the stream of a client that takes nothing.
var errSlow = status.Error(codes.Unavailable, "the stream was not read for 10 s: connect again, behind the last event received")
