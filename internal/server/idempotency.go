package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/loopd/loopd/internal/postgres"
)

// maxRequestID is the length that the protos allow; the header keeps to it.
const maxRequestID = 128

// requestID is what makes a call safe to repeat: its field request_id or, over
// REST, the header Idempotency-Key, bare or in double quotes. "" is none.
func requestID(ctx context.Context, field string) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, keyIdempotency)
	if len(values) == 0 {
		return field, nil
	}
	if len(values) > 1 {
		return "", invalid(fieldError{"Idempotency-Key", "the header is there more than once: send it once"})
	}
	key := values[0]
	if len(key) >= 2 && strings.HasPrefix(key, `"`) && strings.HasSuffix(key, `"`) {
		key = key[1 : len(key)-1]
	}
	switch {
	case key == "" || len(key) > maxRequestID || strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }):
		return "", invalid(fieldError{"Idempotency-Key", fmt.Sprintf("%q is not 1 to %d printable ASCII characters without spaces", excerpt(key), maxRequestID)})
	case field != "" && field != key:
		return "", invalid(fieldError{"request_id", fmt.Sprintf("%q differs from the header Idempotency-Key, %q: send one of them, or the same", field, key)})
	}
	return key, nil
}

// idempotency says whether a call may be repeated, and by what it is known then. The
// fingerprint leaves the request id out, so that header and field are one thing.
func idempotency(ctx context.Context, method string, req repeatableRequest) (postgres.Idempotency, error) {
	key, err := requestID(ctx, req.GetRequestId())
	if err != nil || key == "" {
		return postgres.Idempotency{}, err
	}
	return postgres.Idempotency{Method: method, Key: key, Fingerprint: fingerprint(req, "request_id")}, nil
}

// repeatableRequest is a request that changes something.
type repeatableRequest interface {
	proto.Message
	GetRequestId() string
}

// settle counts what became of a run's creation with a request id, and tells the
// client if it reads an earlier answer again.
func (s *Server) settle(ctx context.Context, idem postgres.Idempotency, replayed bool) error {
	switch {
	case idem.Key == "":
		return nil
	case !replayed:
		s.metrics.idempotency.WithLabelValues(idempotencyNew).Inc()
		return nil
	}
	s.metrics.idempotency.WithLabelValues(idempotencyReplayed).Inc()
	return markReplayed(ctx, true)
}

// markReplayed tells the client that it reads the answer to an earlier request.
func markReplayed(ctx context.Context, replayed bool) error {
	if !replayed {
		return nil
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs(keyReplayed, "true")); err != nil {
		return fmt.Errorf("mark the answer as replayed: %w", err)
	}
	return nil
}

// countMismatch counts a request id that was used for another request.
func (s *Server) countMismatch(err error) {
	if errors.Is(err, postgres.ErrKeyReused) {
		s.metrics.idempotency.WithLabelValues(idempotencyMismatch).Inc()
	}
}
