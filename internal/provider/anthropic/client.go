// Package anthropic speaks the Anthropic Messages API, streamed. It sends one
// request per call and keeps every assistant message byte for byte, because
// signed reasoning may not change and because the prompt cache matches prefixes.
//
// It reads the wire itself rather than through the vendor's SDK; package provider
// says why.
package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

const (
	defaultBaseURL = "https://api.anthropic.com"
	apiVersion     = "2023-06-01"
)

// Config is how the API is reached. Only APIKey has no usable zero value.
type Config struct {
	APIKey           provider.Secret
	BaseURL          string        // with or without /v1; "" = Anthropic's own
	HTTPClient       *http.Client  // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64         // 0 = provider.DefaultMaxResponseBytes
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	if c.APIKey == "" {
		return errors.New("anthropic: the API key is empty; set it")
	}
	return provider.CheckBaseURL(c.BaseURL)
}

// Client is a configured provider. Safe for concurrent use.
type Client struct {
	transport provider.Transport
	address   string
	key       provider.Secret
}

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	base := strings.TrimSuffix(strings.TrimRight(c.BaseURL, "/"), "/v1")
	if base == "" {
		base = defaultBaseURL
	}
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		address: base + "/v1/messages",
		key:     c.APIKey,
	}
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a cut answer had reported of its usage is in it.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	body, err := encode(req)
	if err != nil {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
	}
	resp, err := c.transport.Post(ctx, c.address, http.Header{
		"Accept":            {"text/event-stream"},
		"Anthropic-Version": {apiVersion},
		"Content-Type":      {"application/json"},
		"User-Agent":        {"loopd"},
		"X-Api-Key":         {string(c.key)},
	}, body)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	defer resp.Close()
	a := &answer{open: map[int]*block{}}
	if err := a.read(resp); err != nil {
		return loop.ModelAnswer{}, provider.WithUsage(err, a.usage.loop())
	}
	return a.result()
}

// read takes the answer in, streamed or whole.
func (a *answer) read(resp *provider.Response) error {
	whole, err := resp.IsObject()
	if err != nil {
		return err
	}
	if whole {
		body, err := io.ReadAll(resp)
		if err != nil {
			return err
		}
		return a.message(body)
	}
	events := provider.NewEvents(resp.Reader)
	for !a.stopped {
		data, err := events.Next()
		if errors.Is(err, io.EOF) {
			return provider.Cut("the stream ended before message_stop")
		}
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return provider.Cut("an event of the stream is no complete JSON")
		}
		if err := a.apply(e, data); err != nil {
			return err
		}
	}
	return nil
}
