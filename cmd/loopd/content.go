package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/engine"
)

// captureVariable is OpenTelemetry's own: whether traces hold what people, models and
// tools said. By default they do not.
const captureVariable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// captured is what the variable asks for.
func (c *config) captured() (engine.Content, error) {
	content := engine.Content{Redact: redactor(c.secrets())}
	switch v := c.getenv(captureVariable); strings.ToUpper(v) {
	case "", "NO_CONTENT", "FALSE":
	case "SPAN_ONLY", "TRUE":
		content.Spans = true
	case "EVENT_ONLY":
		content.Events = true
	case "SPAN_AND_EVENT":
		content.Spans, content.Events = true, true
	default:
		return content, fmt.Errorf("%s is %q: use NO_CONTENT, SPAN_ONLY, EVENT_ONLY or SPAN_AND_EVENT", captureVariable, v)
	}
	return content, nil
}

// secrets are the values that no trace may hold, whoever said them.
func (c *config) secrets() []string {
	var values []string
	for _, name := range []string{"LOOPD_ANTHROPIC_API_KEY", "LOOPD_OPENAI_API_KEY", "LOOPD_GEMINI_API_KEY"} {
		if v, err := readSecret(c.getenv, name); err == nil && v != "" {
			values = append(values, v)
		}
	}
	return values
}

// credentials are what well-known credentials look like. The values that loopd puts into
// calls of tools are taken out where the answer comes in; these are for what people and
// models write.
const credentials = `(?i:bearer|basic)\s+[A-Za-z0-9._~+/-]{8,}=*` +
	`|\bsk-[A-Za-z0-9_-]{16,}` + // OpenAI, Anthropic
	`|\bAIza[0-9A-Za-z_-]{35}` + // Google
	`|\bAKIA[0-9A-Z]{16}\b` + // AWS
	`|\bgh[pousr]_[A-Za-z0-9]{36,}` + // GitHub
	`|\bxox[abprs]-[A-Za-z0-9-]{10,}` + // Slack
	`|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*` + // JSON Web Tokens
	`|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----` +
	`|[a-z][a-z0-9+.-]*://[^/\s:@"]+:[^/\s@"]+@` + // in addresses
	`|(?i:passw(?:or)?d|secret|api[_-]?key|access[_-]?token)\\?["']?\s*[:=]\s*\\?["']?[^\s"'\\,;}]{4,}`

const redacted = "[redacted]"

// redactor removes these values, and whatever looks like a credential. It is safe for
// concurrent use.
func redactor(values []string) func(string) string {
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) }) // one may begin another
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v, redacted)
	}
	known, likely := strings.NewReplacer(pairs...), regexp.MustCompile(credentials)
	return func(text string) string { return likely.ReplaceAllString(known.Replace(text), redacted) }
}
