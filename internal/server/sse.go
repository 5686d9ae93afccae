package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// sseMarshaler writes the messages of StreamEvents as server-sent events. An event
// has the journal's seq as its id, so that a browser that connects again asks for
// what follows by itself. Heartbeats are comments.
type sseMarshaler struct{ *runtime.JSONPb }

// Marshal writes one chunk of the stream: the gateway wraps a message as result,
// and the status that ends a broken stream as error.
func (m *sseMarshaler) Marshal(v any) ([]byte, error) {
	switch chunk := v.(type) {
	case map[string]any:
		if msg, ok := chunk["result"].(*loopdv1.StreamEventsResponse); ok {
			return m.event(msg)
		}
	case map[string]proto.Message:
		if st, ok := chunk["error"].(*spb.Status); ok {
			return failure(status.FromProto(st))
		}
	}
	return m.JSONPb.Marshal(v)
}

func (m *sseMarshaler) event(msg *loopdv1.StreamEventsResponse) ([]byte, error) {
	switch kind := msg.GetKind().(type) {
	case *loopdv1.StreamEventsResponse_Event:
		data, err := m.line(kind.Event)
		return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n", kind.Event.GetSeq(), kind.Event.GetKind(), data), err
	case *loopdv1.StreamEventsResponse_End:
		data, err := m.line(kind.End)
		return fmt.Appendf(nil, "event: end\ndata: %s\n", data), err
	default:
		return []byte(": ping\n"), nil
	}
}

// line is a message as JSON without line breaks, which would end the data.
func (m *sseMarshaler) line(msg proto.Message) ([]byte, error) {
	data, err := m.JSONPb.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return nil, fmt.Errorf("compact %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	return b.Bytes(), nil
}

// failure ends a stream that cannot go on. A server that shuts down is no failure:
// the client connects again by itself.
func failure(st *status.Status) ([]byte, error) {
	if st.Code() == codes.Unavailable {
		return []byte(": connect again\n"), nil
	}
	data, err := json.Marshal(problemOf(st))
	return fmt.Appendf(nil, "event: error\ndata: %s\n", data), err
}

// StreamContentType is the media type of the stream.
func (*sseMarshaler) StreamContentType(any) string { return eventStream + "; charset=utf-8" }

// Delimiter ends an event with an empty line.
func (*sseMarshaler) Delimiter() []byte { return []byte("\n") }

// NewDecoder reads requests as JSON.
func (m *sseMarshaler) NewDecoder(r io.Reader) runtime.Decoder { return m.JSONPb.NewDecoder(r) }
