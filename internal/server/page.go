package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const (
	defaultPage = 50
	maxPage     = 1000
	// bindingBytes of a hash tie a page token to its request. They guard against
	// mistakes, not against attackers: a token holds nothing secret.
	bindingBytes = 8
)

// pageSize is how many entries a page has.
func pageSize(asked int32) int {
	if asked <= 0 {
		return defaultPage
	}
	return min(int(asked), maxPage)
}

// pageToken makes the token that continues req after the entry named by cursor.
func pageToken(req proto.Message, cursor string) string {
	return base64.RawURLEncoding.EncodeToString(append(binding(req), cursor...))
}

// pagedRequest is a request for a page of a list.
type pagedRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// cursorOf reads the token of req: the cursor that pageToken was given, "" for the
// first page.
func cursorOf(req pagedRequest) (string, error) {
	if req.GetPageToken() == "" {
		return "", nil
	}
	token, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(token) <= bindingBytes || !bytes.Equal(token[:bindingBytes], binding(req)) {
		return "", errPageToken()
	}
	return string(token[bindingBytes:]), nil
}

func errPageToken() error {
	r := invalid(fieldError{"page_token", "it is not one that loopd gave for this request; send next_page_token of the page before with the same other fields, or none"})
	r.reason = loopdv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID
	return r
}

func binding(req proto.Message) []byte {
	return fingerprint(req, "page_size", "page_token")[:bindingBytes]
}

// fingerprint tells requests apart: the SHA-256 of the request's type and of its
// canonical bytes, without the fields named.
func fingerprint(req proto.Message, without ...protoreflect.Name) []byte {
	bare := proto.Clone(req)
	m := bare.ProtoReflect()
	for _, name := range without {
		m.Clear(m.Descriptor().Fields().ByName(name))
	}
	// Unknown fields are part of it: the same key with other bytes is another request.
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	if err != nil { // it was just decoded, so it encodes
		canonical = fmt.Append(nil, err)
	}
	h := sha256.New()
	_, _ = h.Write([]byte(m.Descriptor().FullName()))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(canonical)
	return h.Sum(nil)
}
