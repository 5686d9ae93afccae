package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const eventStream = "text/event-stream"

// eventsHandler is StreamEvents over REST: as server-sent events for those who
// accept them, else as JSON, one message to a line. The gateway's own streaming
// cannot do it: it knows no problem documents.
type eventsHandler struct {
	gateway *runtime.ServeMux // its rules for headers hold here too
	client  loopdv1.RunServiceClient
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
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, first, err := h.open(ctx, r)
	if err != nil {
		writeProblem(w, problemOf(status.Convert(err)))
		return
	}
	format, contentType := h.line, "application/json"
	if acceptsEvents(r) {
		format, contentType = h.event, eventStream+"; charset=utf-8"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect the events
	control := http.NewResponseController(w)
	for msg := first; err == nil; msg, err = stream.Recv() {
		if h.send(w, control, format(msg, nil)) != nil {
			return // the client is gone
		}
	}
	if !errors.Is(err, io.EOF) {
		_ = h.send(w, control, format(nil, status.Convert(err)))
	}
}

// open starts the stream and waits for its first message, so that a refusal can
// still be told by the HTTP status.
func (h *eventsHandler) open(ctx context.Context, r *http.Request) (loopdv1.RunService_StreamEventsClient, *loopdv1.StreamEventsResponse, error) {
	ctx, err := runtime.AnnotateContext(ctx, h.gateway, r, loopdv1.RunService_StreamEvents_FullMethodName)
	if err != nil {
		return nil, nil, err
	}
	req := &loopdv1.StreamEventsRequest{Parent: runName(r.PathValue("run"))}
	inPath := utilities.NewDoubleArray([][]string{{"parent"}})
	if err := (strictQuery{}).Parse(req, r.URL.Query(), inPath); err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	stream, err := h.client.StreamEvents(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	return stream, first, err
}

func (h *eventsHandler) send(w io.Writer, control *http.ResponseController, frame []byte) error {
	if _, err := w.Write(frame); err != nil {
		return err
	}
	return control.Flush()
}

// event is a message as a server-sent event, or what ended the stream. The journal's
// seq is the id, so a browser that connects again asks for what follows by itself.
// A server that shuts down ended the stream for no reason that concerns the client.
func (h *eventsHandler) event(msg *loopdv1.StreamEventsResponse, broken *status.Status) []byte {
	switch kind := msg.GetKind().(type) {
	case *loopdv1.StreamEventsResponse_Event:
		return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", kind.Event.GetSeq(), kind.Event.GetKind(), h.compact(kind.Event))
	case *loopdv1.StreamEventsResponse_Delta: // without an id, so that Last-Event-ID stays an event's
		return fmt.Appendf(nil, "event: delta\ndata: %s\n\n", h.compact(kind.Delta))
	case *loopdv1.StreamEventsResponse_End:
		return fmt.Appendf(nil, "event: end\ndata: %s\n\n", h.compact(kind.End))
	}
	switch {
	case broken == nil:
		return []byte(": ping\n\n")
	case broken.Code() == codes.Unavailable:
		return []byte(": connect again\n\n")
	}
	return fmt.Appendf(nil, "event: error\ndata: %s\n\n", problemOf(broken).encode())
}

// line is a message as a line of JSON, or what ended the stream.
func (h *eventsHandler) line(msg *loopdv1.StreamEventsResponse, broken *status.Status) []byte {
	if broken != nil {
		return fmt.Appendf(nil, `{"error":%s}`+"\n", problemOf(broken).encode())
	}
	return fmt.Appendf(nil, `{"result":%s}`+"\n", h.compact(msg))
}

// compact is a message as JSON without line breaks, which would end the data.
func (h *eventsHandler) compact(msg proto.Message) []byte {
	data, err := h.json.Marshal(msg)
	var b bytes.Buffer
	if err == nil {
		err = json.Compact(&b, data)
	}
	if err != nil { // it came over the wire, so it encodes
		return problemOf(toStatus(err, "")).encode()
	}
	return b.Bytes()
}
