package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"code.dny.dev/ssrf"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
)

const (
	// defaultReadBytes is far more than a model should be shown of one result.
	defaultReadBytes = 1 << 20
	// defaultTimeout is for specs that state none.
	defaultTimeout = 30 * time.Second
	// defaultKeepIdle spans the model call between two iterations of a run.
	defaultKeepIdle = 5 * time.Minute
	// connectTimeout bounds dial and TLS each: a server that does not take a
	// connection in this time is down, and nothing was sent.
	connectTimeout = 3 * time.Second
)

// Config says how MCP servers are reached. The zero value reaches public
// addresses only, starts no commands and knows no secrets.
type Config struct {
	// Transport makes the connections, and is where addresses are checked. Calls
	// that must not be sent twice use a copy of it without HTTP/2 and connection
	// reuse. Nil is a transport that dials public addresses on ports 80 and 443.
	Transport *http.Transport

	// Secrets resolves ${secret:NAME} in configured headers whenever a server is
	// called. It must be safe for concurrent use. Nil knows none.
	Secrets func(name string) (value string, ok bool)

	// Identity says as which OAuth client loopd gets access tokens for the server
	// at a URL, by the client credentials grant; no person is ever asked to log
	// in. Nil, or false: none, and a server that wants a token is refused.
	Identity func(url string) (id Identity, ok bool)

	// AllowCommands lets specs name commands that serve on standard input and
	// output. They run as loopd's own user: for development only.
	AllowCommands bool

	// CommandEnv is the whole environment of such commands, as NAME=value. Nil is
	// a PATH and nothing else: loopd's own environment may hold secrets.
	CommandEnv []string

	// MaxReadBytes bounds what is kept of an answer. One that is longer is cut;
	// one of more than four times as much is not read to its end. Zero is 1 MiB.
	MaxReadBytes int64

	// MaxSilence ends a call that neither answers nor reports progress for this
	// long. Zero: only the timeout of the tool ends it, which always holds.
	MaxSilence time.Duration

	// KeepIdle is how long a session that no call uses is kept. Zero is 5 minutes.
	KeepIdle time.Duration

	// Log gets one line per call, without arguments, answers or headers. Nil
	// logs nothing.
	Log *slog.Logger
}

// Identity is an OAuth client that was registered with a server's
// authorization server beforehand.
type Identity struct {
	ClientID     string
	ClientSecret string
	Issuer       string // the only authorization server that may see the secret; required
}

// Client calls tools of MCP servers. It is safe for concurrent use.
type Client struct {
	cfg        Config
	repeatable *http.Transport // for all that may be sent again
	single     *http.Transport // for calls that must not
	tokens     atomic.Int64    // the last progress token

	mu       sync.Mutex
	closed   bool
	sessions map[string]*session // by the key of their server; those that take new calls
	open     sync.WaitGroup      // of all sessions, until they are closed
}

// New makes a Client. It opens no connection.
func New(cfg Config) *Client {
	if cfg.Transport == nil {
		cfg.Transport = publicTransport()
	}
	if cfg.Secrets == nil {
		cfg.Secrets = func(string) (string, bool) { return "", false }
	}
	if cfg.Identity == nil {
		cfg.Identity = func(string) (Identity, bool) { return Identity{}, false }
	}
	if cfg.CommandEnv == nil {
		cfg.CommandEnv = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	}
	if cfg.MaxReadBytes <= 0 {
		cfg.MaxReadBytes = defaultReadBytes
	}
	if cfg.KeepIdle <= 0 {
		cfg.KeepIdle = defaultKeepIdle
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg, repeatable: cfg.Transport, single: singleTransport(cfg.Transport), sessions: map[string]*session{}}
}

func publicTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout, Control: ssrf.New().Safe}
	return &http.Transport{
		Proxy:               nil, // a proxy of the environment would dial for us, past the check
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		IdleConnTimeout:     time.Minute,
	}
}

// singleTransport sends a request once or not at all: a connection that was
// never used before is one that net/http never repeats a request on, and HTTP/2,
// which repeats after GOAWAY and refused streams, is off.
func singleTransport(from *http.Transport) *http.Transport {
	t := from.Clone()
	t.DisableKeepAlives = true
	t.ForceAttemptHTTP2 = false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	// A transport that was used before has HTTP/2 in its TLS settings as well.
	t.TLSNextProto = nil
	if t.TLSClientConfig != nil {
		t.TLSClientConfig = t.TLSClientConfig.Clone()
		t.TLSClientConfig.NextProtos = nil
	}
	return t
}

// Call sends the call once and says in the reply's Outcome what came of it. It
// takes at most the spec's timeout, and returns soon after ctx ends. For tools
// that are not repeatable it puts at most one tools/call on the wire; others are
// sent once more when the server has forgotten the session.
func (c *Client) Call(ctx context.Context, req tool.Request) (reply loop.ToolReply) {
	start := time.Now()
	x := &exchange{client: c, req: req}
	defer func() {
		if fault := recover(); fault != nil {
			c.cfg.Log.ErrorContext(ctx, "MCP call panicked", "tool", req.Spec.Name, "run", req.Run.ID, "call", req.Call.ID,
				"panic", fault, "stack", string(debug.Stack()))
			reply = x.broken(ctx, errors.New("a fault inside loopd"))
		}
		reply.Duration = time.Since(start)
		c.cfg.Log.DebugContext(ctx, "MCP call", "tool", req.Spec.Name, "run", req.Run.ID, "call", req.Call.ID,
			"attempt", req.Attempt, "outcome", reply.Outcome, "status", reply.Status, "bytes", reply.Bytes, "duration", reply.Duration)
	}()
	if req.Spec.MCP == nil {
		return x.misconfigured(fmt.Errorf("tool %q has no mcp section, so it cannot be called", req.Spec.Name))
	}
	if problem := argumentsProblem(req.Call.Args); problem != "" {
		return fail(loop.OutcomeInvalidArgs, problemNote{Kind: "invalid_arguments", Message: problem + ". Nothing was sent."})
	}
	server, err := c.resolve(req.Run.Tenant, *req.Spec.MCP)
	if err != nil {
		return x.misconfigured(err)
	}
	x.server = server
	return x.do(ctx)
}

// argsText is the text of the arguments. Models leave it empty when a tool takes
// none; that is the one thing loopd reads as something else.
func argsText(args string) string {
	if strings.TrimSpace(args) == "" {
		return "{}"
	}
	return args
}

func argumentsProblem(args string) string {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(argsText(args)), &members); err != nil || members == nil {
		return "arguments: expected a JSON object"
	}
	return ""
}

// Close gives up the calls in flight, ends all sessions and kills the commands
// that loopd started. It takes a few seconds at most. Later calls are not sent.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	var idle []*session
	for key, s := range c.sessions {
		delete(c.sessions, key)
		s.retired = true
		if s.users == 0 {
			idle = append(idle, s)
		}
		s.giveUp(errClosed)
	}
	c.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
	c.open.Wait() // the last call of each of the others closes it
}

var errClosed = errors.New("loopd is shutting down")
