package server

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
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

// replayed tells the client that it reads an answer again.
func replayed(ctx context.Context) error {
	if err := grpc.SetHeader(ctx, metadata.Pairs(keyReplayed, "true")); err != nil {
		return fmt.Errorf("mark the answer as replayed: %w", err)
	}
	return nil
}
