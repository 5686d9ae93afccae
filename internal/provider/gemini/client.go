// Package gemini speaks Google's native Gemini API, streamed: on Google's own
// host with an API key, and on Vertex AI with an access token. It sends one
// request per call and keeps every part of an answer as it came, because thought
// signatures may not change and because the prompt cache matches prefixes.
//
// It reads the wire itself rather than through Google's SDK; package provider
// says why. Looked at: google.golang.org/genai v1.77.0 decodes every answer
// through map[string]any into closed structs, so that members it does not know,
// integers above 2^53 and the empty text of a part that only bears a signature are
// gone before a caller sees them. A stream that ends before its finish reason is
// no error to it.
package gemini

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// The v1 of Google's own host knows neither tools nor system instructions, so
// v1beta it is. On Vertex AI v1 knows both.
const (
	defaultBaseURL = "https://generativelanguage.googleapis.com/v1beta"
	vendorDomain   = "googleapis.com"
	vertexDomain   = "aiplatform.googleapis.com"
)

// Config is how the API is reached. Its zero value is Google's own host without
// a key.
type Config struct {
	APIKey provider.Secret // sent as x-goog-api-key
	// Token, if set, is asked before every request for an OAuth access token, which
	// is sent instead of a key, for Vertex AI. It is called concurrently.
	Token func(ctx context.Context) (string, error)
	// BaseURL is everything before /models, with the version; "" = Google's own.
	// For Vertex AI: https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/
	// locations/REGION/publishers/google, in one line.
	BaseURL string
	// Header is added to every request, such as X-Goog-User-Project, and replaces
	// what loopd would send under the same name. It is no place for credentials:
	// they would not be removed from error messages.
	Header           http.Header
	HTTPClient       *http.Client  // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64         // 0 = provider.DefaultMaxResponseBytes
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	if err := provider.CheckBaseURL(c.BaseURL); err != nil {
		return err
	}
	u, err := url.Parse(c.base())
	if err != nil {
		return fmt.Errorf("gemini: base URL: %w", err)
	}
	vendor := strings.HasSuffix("."+u.Hostname(), "."+vendorDomain)
	switch {
	case c.APIKey != "" && c.Token != nil:
		return errors.New("gemini: an API key and an access token are both set; leave one out")
	case vendor && c.APIKey == "" && c.Token == nil:
		return errors.New("gemini: the API key is empty; set it, or an access token for Vertex AI")
	case vendor && strings.Trim(u.Path, "/") == "":
		return fmt.Errorf("gemini: base URL %q: the version is missing; end it with /v1beta", c.BaseURL)
	case strings.HasSuffix(u.Hostname(), vertexDomain) && !isVertex(c.base()):
		return fmt.Errorf("gemini: base URL %q: the publisher is missing; end it with /publishers/google", c.BaseURL)
	}
	return nil
}

func (c Config) base() string {
	if base := strings.TrimRight(c.BaseURL, "/"); base != "" {
		return base
	}
	return defaultBaseURL
}

// isVertex reports whether an address has the form that Vertex AI has.
func isVertex(base string) bool { return strings.Contains(base, "/publishers/") }

// Client is a configured provider. Safe for concurrent use.
type Client struct {
	transport provider.Transport
	base      string
	token     func(ctx context.Context) (string, error)
	header    http.Header
}

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		base:   c.base(),
		token:  c.Token,
		header: c.Header.Clone(),
	}
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a cut answer had reported of its usage is in it.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	body, err := encode(req)
	if err != nil {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
	}
	transport, header, refusal, err := c.prepare(ctx, req)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	resp, err := transport.Post(ctx, c.address(req.Model, "streamGenerateContent?alt=sse"), header, body)
	if err != nil {
		return loop.ModelAnswer{}, sharpen(err, refusal.body.Bytes())
	}
	defer resp.Close()
	a := &answer{emit: req.Emit}
	if err := a.read(resp); err != nil {
		return loop.ModelAnswer{}, resp.Fail(err, a.usage.loop())
	}
	out, err := a.result()
	if err != nil {
		return loop.ModelAnswer{}, resp.Fail(err, a.usage.loop())
	}
	out.Rate = resp.Rate
	return out, nil
}

// CountTokens asks how many tokens the input of req has, tools and instructions
// included. The provider charges nothing for it, and its count is no promise.
// Every error is a *loop.ModelError.
func (c *Client) CountTokens(ctx context.Context, req loop.ModelRequest) (int64, error) {
	body, err := encodeCount(req, isVertex(c.base))
	if err != nil {
		return 0, &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
	}
	transport, header, refusal, err := c.prepare(ctx, req)
	if err != nil {
		return 0, err
	}
	var counted struct {
		TotalTokens *int64 `json:"totalTokens"`
	}
	if err := transport.PostJSON(ctx, c.address(req.Model, "countTokens"), header, body, &counted); err != nil {
		return 0, sharpen(err, refusal.body.Bytes())
	}
	if counted.TotalTokens == nil {
		return 0, provider.Cut("the answer to countTokens has no totalTokens")
	}
	return *counted.TotalTokens, nil
}

// address is where a method of the model is.
func (c *Client) address(model, method string) string {
	return c.base + "/models/" + url.PathEscape(bare(model)) + ":" + method
}

// bare is a model's name without the collection that Google's lists put before it.
func bare(model string) string { return strings.TrimPrefix(model, "models/") }

// prepare makes what one request is sent with: a transport that knows the
// credential and is tapped, and the headers.
func (c *Client) prepare(ctx context.Context, req loop.ModelRequest) (provider.Transport, http.Header, *tap, error) {
	transport := c.transport.For(req)
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"loopd"}}
	switch {
	case c.token != nil:
		token, err := c.token(ctx)
		if err != nil {
			return transport, nil, nil, &loop.ModelError{Class: loop.ErrorNotStarted, Message: "get an access token: " + err.Error()}
		}
		transport.Key = provider.Secret(token)
		header.Set("Authorization", "Bearer "+token)
	case transport.Key != "":
		header.Set("X-Goog-Api-Key", string(transport.Key))
	}
	for name, values := range c.header {
		header[http.CanonicalHeaderKey(name)] = values
	}
	refusal := &tap{}
	transport.Client = refusal.client(transport.Client)
	return transport, header, refusal, nil
}
