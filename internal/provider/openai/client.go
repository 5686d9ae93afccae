// Package openai speaks Chat Completions, streamed, to OpenAI and to the many
// servers that imitate it. Those differ in small ways, each of which was recorded
// somewhere: call ids that are empty or repeated, arguments that are missing,
// null or an object, calls without an index, errors in every shape, whole JSON
// where a stream was asked for. The package takes all of them and sends one
// request per call. What differs in a request is data: see Profile.
//
// It reads the wire itself rather than through the vendor's SDK; package provider
// says why.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// Config is how a server is reached. Its zero value is OpenAI without a key.
type Config struct {
	APIKey           provider.Secret // empty = not sent, for local servers
	BaseURL          string          // up to and including /v1; "" = the profile's own
	Profile          Profile         // zero = the one that fits the host of BaseURL
	Header           http.Header     // sent with every request, for gateways that want more; may be nil
	HTTPClient       *http.Client    // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration   // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration   // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64           // 0 = provider.DefaultMaxResponseBytes

	// OutputLimit is the request member that carries the output cap, MaxTokens or
	// MaxCompletionTokens; "" = the profile's.
	OutputLimit string
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	p := c.profile()
	if err := p.Validate(); err != nil {
		return err
	}
	if p.BaseURL == "" {
		return fmt.Errorf("openai: profile %q: the base URL is empty; set it up to what stands before /chat/completions", p.Name)
	}
	if c.APIKey == "" && p.NeedsKey {
		return errors.New("openai: the API key is empty; set it")
	}
	if c.Header.Get(p.KeyHeader) != "" {
		return fmt.Errorf("openai: header %s: set the API key instead, which is kept out of logs", p.KeyHeader)
	}
	return nil
}

// profile is what differs about this server.
func (c Config) profile() Profile {
	p := c.Profile
	if p == (Profile{}) {
		p = profileAt(c.BaseURL)
	}
	if c.BaseURL != "" {
		p.BaseURL = c.BaseURL
	}
	if c.OutputLimit != "" {
		p.OutputLimit = c.OutputLimit
	}
	return p
}

// Client is a configured provider. Safe for concurrent use.
type Client struct {
	transport provider.Transport
	address   string
	header    http.Header
	profile   Profile
}

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	p := c.profile()
	header := http.Header{
		"Accept":       {"text/event-stream"},
		"Content-Type": {"application/json"},
		"User-Agent":   {"loopd"},
	}
	for name, values := range c.Header {
		header[http.CanonicalHeaderKey(name)] = values
	}
	switch {
	case c.APIKey == "":
	case p.KeyHeader == bearerHeader:
		header.Set(bearerHeader, "Bearer "+string(c.APIKey))
	default:
		header.Set(p.KeyHeader, string(c.APIKey))
	}
	address := strings.TrimRight(p.BaseURL, "/") + "/chat/completions"
	if p.Query != "" {
		address += "?" + p.Query
	}
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		address: address,
		header:  header,
		profile: p,
	}
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a cut answer had reported of its usage is in it.
//
// It is four functions for the sake of its stack: the wait is in ask, below which no
// request, answer or body lies.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	out, err := c.ask(ctx, &req)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	return *out, nil
}

// ask sends the request and reads the answer.
func (c *Client) ask(ctx context.Context, req *loop.ModelRequest) (*loop.ModelAnswer, error) {
	resp, err := c.send(ctx, req)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	a := newAnswer(req)
	return a.end(resp, a.read(resp))
}

// newAnswer is not inlined: its caller waits, and would have the answer on its stack.
//
//go:noinline
func newAnswer(req *loop.ModelRequest) *answer {
	return &answer{limit: req.MaxOutputTokens, message: message{emit: req.Emit}}
}

// send sends the request.
func (c *Client) send(ctx context.Context, req *loop.ModelRequest) (*provider.Response, error) {
	body, err := c.profile.encode(*req)
	if err != nil {
		return nil, unsent(err)
	}
	header := c.header.Clone()
	if c.profile.CacheKeyHeader != "" && req.CacheKey != "" {
		header.Set(c.profile.CacheKeyHeader, req.CacheKey)
	}
	return c.transport.For(*req).Post(ctx, c.address, header, body)
}

// end is what was read, unless reading it ended in err.
func (a *answer) end(resp *provider.Response, err error) (*loop.ModelAnswer, error) {
	if err != nil {
		return nil, resp.Fail(err, a.usage.loop())
	}
	out, err := a.result()
	if err != nil {
		return nil, resp.Fail(err, a.usage.loop())
	}
	out.Rate = resp.Rate
	return &out, nil
}

// unsent is the error for a request that could not be built: the run's own
// fault if it says so, else loopd's.
func unsent(err error) error {
	if e, ok := errors.AsType[*loop.ModelError](err); ok {
		return e
	}
	return &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
}
