// Package openai speaks Chat Completions, streamed, to OpenAI and to the many
// servers that imitate it. Those differ in small ways, each of which was recorded
// somewhere: call ids that are empty or repeated, arguments that are missing,
// null or an object, calls without an index, errors in every shape, whole JSON
// where a stream was asked for. The package takes all of them and sends one
// request per call.
//
// It reads the wire itself rather than through the vendor's SDK; package provider
// says why.
package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

const (
	defaultBaseURL = "https://api.openai.com/v1"
	vendorHost     = "api.openai.com"
)

// Names of the member that caps the output, for Config.OutputLimit.
const (
	MaxTokens           = "max_tokens"            // understood by compatible servers
	MaxCompletionTokens = "max_completion_tokens" // demanded by OpenAI's reasoning models
)

// Config is how a server is reached. Its zero value is OpenAI without a key.
type Config struct {
	APIKey           provider.Secret // empty = no Authorization header, for local servers
	BaseURL          string          // up to and including /v1; "" = OpenAI's own
	HTTPClient       *http.Client    // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration   // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration   // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64           // 0 = provider.DefaultMaxResponseBytes

	// OutputLimit is the request member that carries the output cap; "" =
	// MaxCompletionTokens for OpenAI's own host and MaxTokens for all others.
	OutputLimit string
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	switch c.OutputLimit {
	case "", MaxTokens, MaxCompletionTokens:
	default:
		return fmt.Errorf("openai: output limit %q: write %s or %s", c.OutputLimit, MaxTokens, MaxCompletionTokens)
	}
	if c.APIKey == "" && isVendor(c.BaseURL) {
		return errors.New("openai: the API key is empty; set it")
	}
	return provider.CheckBaseURL(c.BaseURL)
}

// isVendor reports whether the address is OpenAI's own.
func isVendor(base string) bool {
	u, err := url.Parse(base)
	return base == "" || err == nil && u.Hostname() == vendorHost
}

// Client is a configured provider. Safe for concurrent use.
type Client struct {
	transport provider.Transport
	address   string
	header    http.Header
	dialect   dialect
}

// dialect is what differs between servers in a request.
type dialect struct {
	outputLimit string
	cacheKey    bool
}

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	base := strings.TrimRight(c.BaseURL, "/")
	if base == "" {
		base = defaultBaseURL
	}
	d := dialect{outputLimit: c.OutputLimit, cacheKey: isVendor(base)}
	if d.outputLimit == "" {
		d.outputLimit = MaxTokens
		if isVendor(base) {
			d.outputLimit = MaxCompletionTokens
		}
	}
	header := http.Header{
		"Accept":       {"text/event-stream"},
		"Content-Type": {"application/json"},
		"User-Agent":   {"loopd"},
	}
	if c.APIKey != "" {
		header.Set("Authorization", "Bearer "+string(c.APIKey))
	}
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		address: base + "/chat/completions",
		header:  header,
		dialect: d,
	}
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a cut answer had reported of its usage is in it.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	body, err := c.dialect.encode(req)
	if err != nil {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
	}
	resp, err := c.transport.Post(ctx, c.address, c.header.Clone(), body)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	defer resp.Close()
	a := &answer{}
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
		return a.chunk([]byte(strings.ToValidUTF8(string(body), "\uFFFD")))
	}
	events := provider.NewEvents(resp.Reader)
	for {
		data, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) && a.finishReason != "":
			return nil // some servers leave out the end mark; the reason is enough
		case errors.Is(err, io.EOF):
			return provider.Cut("the stream ended without a finish reason")
		case err != nil:
			return err
		case strings.TrimSpace(string(data)) == "[DONE]" && a.begun:
			return nil
		}
		if err := a.chunk(data); err != nil {
			return err
		}
	}
}

// chunk takes one JSON object in. A whole answer is a stream of one chunk.
func (a *answer) chunk(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return provider.Cut("the answer is no complete JSON of the expected kind")
	}
	if c.Usage != nil {
		a.usage = c.Usage
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return provider.ParseFault(data).InBand(a.begun)
	}
	if c.Choices == nil && c.Usage == nil {
		if !a.begun {
			return provider.ParseFault(data).InBand(false)
		}
		return nil // some gateways interleave objects of their own
	}
	a.begun = true
	a.id, a.model = first(a.id, string(c.ID)), first(a.model, string(c.Model))
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // loopd asks for one
		}
		a.message.add(choice.Delta)
		a.message.add(choice.Message)
		a.finishReason = first(string(choice.FinishReason), a.finishReason)
	}
	return nil
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
