// Package responses speaks OpenAI's Responses API, streamed and without state on
// the server: nothing is stored there, so every request carries the whole
// transcript, with the model's reasoning encrypted inside.
//
// What a model wrote is a list of items there. The package keeps that list as the
// server wrote it, without the ids that only a server with state could look up,
// and sends it back byte for byte; replay.go says what must differ and why. It
// sends one request per call.
//
// It reads the wire itself rather than through the vendor's SDK; package provider
// says why.
package responses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

const (
	defaultBaseURL = "https://api.openai.com/v1"
	vendorHost     = "api.openai.com"
)

// Config is how a server is reached. Its zero value is OpenAI without a key.
//
// Azure's v1 endpoint is reached with BaseURL
// "https://RESOURCE.openai.azure.com/openai/v1" and KeyHeader "api-key".
type Config struct {
	APIKey           provider.Secret // empty = no credential is sent, for local servers
	KeyHeader        string          // header that carries the key as it is; "" = Authorization: Bearer
	BaseURL          string          // up to and including /v1; "" = OpenAI's own
	Header           http.Header     // sent with every request, such as OpenAI-Project
	HTTPClient       *http.Client    // nil = one with a 5 s connect timeout and no proxy
	FirstByteTimeout time.Duration   // 0 = provider.DefaultFirstByteTimeout
	IdleTimeout      time.Duration   // 0 = provider.DefaultIdleTimeout
	MaxResponseBytes int64           // 0 = provider.DefaultMaxResponseBytes

	// ReasoningSummary asks models whose agent sets a reasoning effort for a
	// summary that people can read: "auto", "concise" or "detailed"; "" = none.
	// OpenAI gives summaries of some models to verified organisations only and
	// refuses the request of others.
	ReasoningSummary string
	// PlainModels says that the models behind BaseURL do not reason. Such models
	// refuse the wish for encrypted reasoning with status 400. Those whose name
	// begins as OpenAI's do are recognised; set this for deployments with other
	// names.
	PlainModels bool
}

// Validate reports what no request can be sent with.
func (c Config) Validate() error {
	if c.APIKey == "" && isVendor(c.BaseURL) {
		return errors.New("responses: the API key is empty; set it")
	}
	if strings.ContainsAny(c.KeyHeader, " \t\r\n:") {
		return fmt.Errorf("responses: key header %q: write the header's name alone, such as api-key", c.KeyHeader)
	}
	if !slices.Contains([]string{"", "auto", "concise", "detailed"}, c.ReasoningSummary) {
		return fmt.Errorf("responses: reasoning summary %q: write auto, concise, detailed or nothing", c.ReasoningSummary)
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

// New returns a client. It sends nothing yet.
func New(c Config) *Client {
	base := strings.TrimRight(c.BaseURL, "/")
	if base == "" {
		base = defaultBaseURL
	}
	return &Client{
		transport: provider.Transport{
			Client: c.HTTPClient, Key: c.APIKey, FirstByteTimeout: c.FirstByteTimeout,
			IdleTimeout: c.IdleTimeout, MaxResponseBytes: c.MaxResponseBytes,
		}.WithDefaults(),
		address: base + "/responses",
		header:  header(c),
		dialect: dialect{summary: c.ReasoningSummary, plain: c.PlainModels},
	}
}

// header is what every request carries. What the package needs itself wins over
// what was configured.
func header(c Config) http.Header {
	h := c.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set("Accept", "text/event-stream")
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "loopd")
	switch {
	case c.APIKey == "":
	case c.KeyHeader != "":
		h.Set(c.KeyHeader, string(c.APIKey))
	default:
		h.Set("Authorization", "Bearer "+string(c.APIKey))
	}
	return h
}

// Generate performs exactly one request. Every error is a *loop.ModelError; what
// a failed answer had reported of its usage is in it.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	body, err := c.dialect.encode(req)
	if err != nil {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorInternal, Message: err.Error()}
	}
	resp, err := c.transport.For(req).Post(ctx, c.address, c.header.Clone(), body)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	defer resp.Close()
	a := newAnswer(req.Emit)
	if err = a.read(resp); err == nil {
		var result loop.ModelAnswer
		if result, err = a.result(); err == nil {
			result.Rate = resp.Rate
			return result, nil
		}
	}
	usage, _ := Usage(a.final.Usage)
	return loop.ModelAnswer{}, resp.Fail(err, usage)
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
		return a.whole([]byte(strings.ToValidUTF8(string(body), "\uFFFD")))
	}
	events := provider.NewEvents(resp.Reader)
	for !a.ended {
		data, err := events.Next()
		if errors.Is(err, io.EOF) {
			return provider.Cut("the stream ended before the response did")
		}
		if err != nil {
			return err
		}
		if err := a.event(data); err != nil {
			return err
		}
		if !a.writing && resp.Buffered() == 0 {
			resp.Thinking() // the API says at once that it has begun, and then may think for minutes
		}
	}
	return nil
}
