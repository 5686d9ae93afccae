// Package anthropic speaks the Anthropic Messages API, streamed. It sends one
// request per call and keeps every assistant message byte for byte, because
// signed reasoning may not change and because the prompt cache matches prefixes.
//
// Google's Vertex AI serves the same API under other addresses: Config.Vertex.
// So does Amazon Bedrock, with its own keys, where nothing is special:
// https://bedrock-mantle.REGION.api.aws/anthropic is its base URL. Bedrock's
// older API, with its binary event stream, is not spoken; models that only it
// has are reached through Bedrock's OpenAI-compatible endpoint.
//
// The package declares none of the tools that Anthropic runs itself. Should an
// answer hold their blocks, they live in the native form only, and a paused
// answer is sent back unchanged.
//
// It reads the wire itself rather than through the vendor's SDK; package provider
// says why.
package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

const (
	defaultBaseURL = "https://api.anthropic.com"
	apiVersion     = "2023-06-01"
	vertexVersion  = "vertex-2023-10-16"
)

// Config is how the API is reached. Only the credential has no usable zero
// value: APIKey or Token.
type Config struct {
	APIKey provider.Secret

	// Token, if set, is asked before every request for a bearer token, which is
	// sent instead of the key. It is called concurrently.
	Token func(ctx context.Context) (string, error)

	// BaseURL is the address with or without /v1; "" = Anthropic's own. On Vertex
	// https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION/publishers/anthropic.
	BaseURL string

	// Vertex: the API is Google's Vertex AI. It needs Token and BaseURL.
	Vertex bool

	// Header is added to every request, such as Anthropic-Beta, and replaces what
	// loopd would send under the same name. It is no place for credentials: they
	// would not be removed from error messages.
	Header http.Header

	HTTPClient       *http.Client  // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64         // 0 = provider.DefaultMaxResponseBytes
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	switch {
	case c.Vertex && c.Token == nil:
		return errors.New("anthropic: Vertex takes no API key; set Token")
	case c.Vertex && c.BaseURL == "":
		return errors.New("anthropic: on Vertex the base URL names project and region; set it")
	case c.APIKey == "" && c.Token == nil:
		return errors.New("anthropic: the API key is empty; set it")
	}
	return provider.CheckBaseURL(c.BaseURL)
}

// Client is a configured provider. Safe for concurrent use.
type Client struct {
	transport provider.Transport
	base      string
	token     func(ctx context.Context) (string, error)
	vertex    bool
	header    http.Header
}

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	base := strings.TrimRight(c.BaseURL, "/")
	if base == "" {
		base = defaultBaseURL
	}
	if !c.Vertex {
		base = strings.TrimSuffix(base, "/v1") + "/v1"
	}
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		base:   base,
		token:  c.Token,
		vertex: c.Vertex,
		header: c.Header.Clone(),
	}
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a cut answer had reported of its usage is in it.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	body, err := c.encode(req)
	if err != nil {
		return loop.ModelAnswer{}, internal(err)
	}
	address := c.base + "/messages"
	if c.vertex {
		address = c.base + "/models/" + url.PathEscape(req.Model) + ":streamRawPredict"
	}
	transport, header, err := c.open(ctx, "text/event-stream")
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	resp, err := transport.For(req).Post(ctx, address, header, body)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	defer resp.Close()
	a := &answer{open: map[int]*block{}, emit: req.Emit}
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

// CountTokens asks how many tokens the request would be read as. It costs nothing,
// but is rate limited and an estimate without a stated bound. Media given by URL
// is refused. Every error is a *loop.ModelError.
func (c *Client) CountTokens(ctx context.Context, req loop.ModelRequest) (int64, error) {
	body, err := c.encodeCount(req)
	if err != nil {
		return 0, internal(err)
	}
	address := c.base + "/messages/count_tokens"
	if c.vertex {
		address = c.base + "/models/count-tokens:rawPredict"
	}
	transport, header, err := c.open(ctx, "application/json")
	if err != nil {
		return 0, err
	}
	var raw json.RawMessage
	if err := transport.PostJSON(ctx, address, header, body, &raw); err != nil {
		return 0, err
	}
	var count struct {
		Input *int64 `json:"input_tokens"`
	}
	if json.Unmarshal(raw, &count) != nil || count.Input == nil {
		return 0, provider.ParseFault(raw).InBand(false)
	}
	return *count.Input, nil
}

// open prepares a request with the credential of the moment.
func (c *Client) open(ctx context.Context, accept string) (provider.Transport, http.Header, error) {
	transport := c.transport
	header := http.Header{
		"Accept":            {accept},
		"Anthropic-Version": {apiVersion},
		"Content-Type":      {"application/json"},
		"User-Agent":        {"loopd"},
	}
	if c.token != nil {
		token, err := c.token(ctx)
		if err != nil {
			return transport, nil, &loop.ModelError{Class: loop.ErrorNotStarted, Message: "get a token for the provider: " + err.Error()}
		}
		transport.Key = provider.Secret(token)
		header.Set("Authorization", "Bearer "+token)
	} else {
		header.Set("X-Api-Key", string(transport.Key))
	}
	for name, values := range c.header {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return transport, header, nil
}

// internal is the error for a request that cannot be written.
func internal(err error) *loop.ModelError {
	return &loop.ModelError{Class: loop.ErrorInternal, Message: "encode request: " + err.Error()}
}
