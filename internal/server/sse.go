package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

const eventStream = "text/event-stream"

// eventsHandler is StreamEvents over REST: as server-sent events for those who
// accept them, else as JSON, one message to a line. The gateway's own streaming
// cannot do it: it knows no problem documents. Nor does it go through the in-memory
// connection, which would encode each event once more for each of thousands of readers;
// but through the same checks.
type eventsHandler struct {
	server  *Server
	gateway *runtime.ServeMux // its rules for headers hold here too
	json    *runtime.JSONPb
}

// acceptsEvents reports whether a request asks for server-sent events, anywhere in its
// Accept headers.
func acceptsEvents(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Accept"), func(v string) bool {
		return strings.Contains(strings.ToLower(v), eventStream)
	})
}

// ServeHTTP follows a run until it has ended or the client is gone.
func (h *eventsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &restSink{w: w, control: http.NewResponseController(w), json: h.json, events: acceptsEvents(r), patience: h.server.patience}
	if timed, ok := w.(*timedWriter); ok { // a stream has deadlines of its own
		out.w = timed.ResponseWriter
	}
	boundBuffer(r.Context())
	err := h.follow(r, out)
	switch {
	case err == nil:
	case !out.begun:
		writeProblem(w, problemOf(status.Convert(err)))
	default:
		_ = out.write(out.broken(status.Convert(err))) // if it fails the client is gone
		_ = out.flush()
	}
}

// follow does what the gateway and the interceptors do for other calls.
func (h *eventsHandler) follow(r *http.Request, out *restSink) (err error) {
	ctx, err := runtime.AnnotateIncomingContext(r.Context(), h.gateway, r, loopdv1.RunService_StreamEvents_FullMethodName)
	if err != nil {
		return err
	}
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: h.server.loopback.Addr()})
	req := &loopdv1.StreamEventsRequest{Parent: runName(r.PathValue("run"))}
	inPath := utilities.NewDoubleArray([][]string{{"parent"}})
	if err := (strictQuery{}).Parse(req, r.URL.Query(), inPath); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	c := h.server.begin(ctx, loopdv1.RunService_StreamEvents_FullMethodName)
	defer func() { err = c.end(ctx, recover(), err) }()
	if err := h.server.gate.admit(c.method); err != nil {
		return err
	}
	if err := h.server.validate(req); err != nil {
		return err
	}
	return h.server.follow(ctx, req, out)
}

// streamBuffer is what the kernel may hold for a reader of events, in bytes. Its own
// default grows to megabytes, and a slow reader would be noticed only when they are full.
const streamBuffer = 64 << 10

// connKey carries the connection of a request.
type connKey struct{}

// boundBuffer bounds the buffer of the connection that a request came by.
func boundBuffer(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*net.TCPConn); ok {
		_ = conn.SetWriteBuffer(streamBuffer) // a larger one works as well
	}
}

// restSink is the answer to a REST request.
type restSink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	json    *runtime.JSONPb
	events  bool // as server-sent events
	begun   bool // the status is out

	patience time.Duration
}

// flush is where slow readers are noticed.
func (o *restSink) flush() error { return slowError(o.control.Flush()) }

func (o *restSink) write(b []byte) error {
	if !o.begun {
		o.begun = true
		contentType := "application/json"
		if o.events {
			contentType = eventStream + "; charset=utf-8"
		}
		o.w.Header().Set("Content-Type", contentType)
		o.w.Header().Set("X-Accel-Buffering", "no") // nginx would collect the events
	}
	if err := o.control.SetWriteDeadline(time.Now().Add(o.patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := o.w.Write(b)
	return slowError(err)
}

func slowError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return err
}

// event has the journal's seq as its id, so a browser that connects again asks for what
// follows by itself.
func (o *restSink) event(e *entry) error {
	if !o.events {
		return o.write(e.line.get(func() []byte {
			return o.line(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Event{Event: e.event}})
		}))
	}
	return o.write(e.frame.get(func() []byte {
		return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", e.event.GetSeq(), e.event.GetKind(), o.compact(e.event))
	}))
}

// delta is without an id, so that Last-Event-ID stays an event's.
func (o *restSink) delta(d *loopdv1.Delta) error {
	if !o.events {
		return o.write(o.line(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Delta{Delta: d}}))
	}
	return o.write(fmt.Appendf(nil, "event: delta\ndata: %s\n\n", o.compact(d)))
}

func (o *restSink) heartbeat() error {
	if !o.events {
		return o.write(o.line(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Heartbeat{Heartbeat: &loopdv1.Heartbeat{}}}))
	}
	return o.write([]byte(": ping\n\n"))
}

func (o *restSink) end(state loop.RunState) error {
	end := &loopdv1.End{State: runStateProto(state)}
	if !o.events {
		return o.write(o.line(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_End{End: end}}))
	}
	return o.write(fmt.Appendf(nil, "event: end\ndata: %s\n\n", o.compact(end)))
}

// broken is what ended the stream. A server that shuts down ended it for no reason that
// concerns the client.
func (o *restSink) broken(st *status.Status) []byte {
	switch {
	case !o.events:
		return fmt.Appendf(nil, `{"error":%s}`+"\n", problemOf(st).encode())
	case st.Code() == codes.Unavailable:
		return []byte(": connect again\n\n")
	}
	return fmt.Appendf(nil, "event: error\ndata: %s\n\n", problemOf(st).encode())
}

// line is a message as a line of JSON.
func (o *restSink) line(msg *loopdv1.StreamEventsResponse) []byte {
	return fmt.Appendf(nil, `{"result":%s}`+"\n", o.compact(msg))
}

// compact is a message as JSON without line breaks, which would end the data.
func (o *restSink) compact(msg proto.Message) []byte {
	data, err := o.json.Marshal(msg)
	var b bytes.Buffer
	if err == nil {
		err = json.Compact(&b, data)
	}
	if err != nil { // what loopd makes itself encodes
		return problemOf(toStatus(err, "")).encode()
	}
	return b.Bytes()
}
