package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/loopd/loopd/internal/loop"
)

// excerptBytes is what a failed call's answer shows the model: enough for the
// reason that a server gives.
const excerptBytes = 2 << 10

// content is a result as text for a model. Structured content comes as the
// server wrote it, byte for byte: the SDK would round its numbers.
func content(result sdk.CallToolResult, raw json.RawMessage) string {
	var exact struct {
		Structured json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal(raw, &exact); err == nil && len(exact.Structured) > 0 && string(exact.Structured) != "null" && json.Valid(exact.Structured) {
		return string(exact.Structured)
	}
	parts := make([]string, 0, len(result.Content))
	for _, part := range result.Content {
		parts = append(parts, partText(part))
	}
	return strings.Join(parts, "\n")
}

// partText shows one part. What is no text is marked, and left out: a model that
// reads base64 pays for it and learns nothing.
func partText(part sdk.Content) string {
	switch part := part.(type) {
	case *sdk.TextContent:
		return part.Text
	case *sdk.ImageContent:
		return leftOut("image", part.MIMEType, len(part.Data))
	case *sdk.AudioContent:
		return leftOut("audio", part.MIMEType, len(part.Data))
	case *sdk.ResourceLink:
		return fmt.Sprintf("[loopd: link to resource %q at %s]", part.Name, part.URI)
	case *sdk.EmbeddedResource:
		return resourceText(part.Resource)
	}
	return "[loopd: a part of a kind that loopd does not know was left out]"
}

func resourceText(r *sdk.ResourceContents) string {
	switch {
	case r == nil:
		return "[loopd: an empty resource]"
	case r.Blob != nil:
		return leftOut("resource "+r.URI, r.MIMEType, len(r.Blob))
	}
	return fmt.Sprintf("[loopd: resource %s]\n%s", r.URI, r.Text)
}

func leftOut(what, mime string, size int) string {
	return fmt.Sprintf("[loopd: %s (%s, %d bytes) was left out]", what, mime, size)
}

// plain is text as valid UTF-8 without NUL.
func plain(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// limitText cuts a text to at most limit bytes, between two runes.
func limitText(text string, limit int64) (kept string, cut bool) {
	if int64(len(text)) <= limit {
		return text, false
	}
	return strings.ToValidUTF8(text[:limit], ""), true
}

// excerpt is the beginning of a text.
func excerpt(text string) string {
	kept, cut := limitText(text, excerptBytes)
	if cut {
		kept += "…"
	}
	return kept
}

// problemNote is what the model is told about a failed call.
type problemNote struct {
	Kind       string `json:"kind"`
	Status     int    `json:"status,omitempty"`
	Message    string `json:"message"`
	RetryAfter *int64 `json:"retry_after_seconds,omitempty"`
	Body       string `json:"body,omitempty"`
}

// fail is a reply that tells the model what went wrong.
func fail(outcome loop.Outcome, note problemNote) loop.ToolReply {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]problemNote{"error": note}); err != nil {
		panic(errors.Join(errors.New("a problem holds only text and numbers"), err))
	}
	return loop.ToolReply{Outcome: outcome, Content: strings.TrimSuffix(b.String(), "\n")}
}
