package tool

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

const (
	// defaultReadBytes is far more than a model should be shown of one result.
	defaultReadBytes = 1 << 20
	// defaultTimeout is for specs that state none.
	defaultTimeout = 30 * time.Second
)

// Config says how tools are reached. The zero value reaches public addresses
// only and knows no secrets.
type Config struct {
	// Secrets resolves ${secret:NAME} in configured headers, parameters and bodies,
	// and the secrets that sign, at each send, so that a rotated secret is used at
	// once. It must be safe for concurrent use. Nil knows none.
	Secrets func(name string) (value string, ok bool)

	// AllowPrivate lets tools live on loopback and private addresses and on any
	// port, as they do on a developer's machine. Link-local addresses, where
	// cloud metadata services live, stay refused.
	AllowPrivate bool

	// AllowNets are networks in which tools may live besides public ones, on any
	// port. Link-local addresses stay refused.
	AllowNets []netip.Prefix

	// AllowHosts are the only hosts that tools may have, redirects included: names
	// such as "shop.example", "*.shop.example" for all below it, and with a port,
	// "shop.example:8443", for that port alone, which need not be 80 or 443 then.
	// Empty allows all. Being listed opens no private address.
	AllowHosts []string

	// MaxReadBytes bounds how much of an answer is read, after decompression.
	// Zero is 1 MiB.
	MaxReadBytes int64

	// Log gets one line per call, without arguments, answers or headers. Nil
	// logs nothing.
	Log *slog.Logger
}

// Transport reaches what tools may be at, and nothing else: for others who talk
// to servers that somebody else named, such as those of MCP. Each call makes one
// of its own; the caller closes its idle connections.
func (c Config) Transport() *http.Transport { return transport(newDialer(c)) }

// Runner calls tools and checks values against schemas. It is safe for
// concurrent use.
type Runner struct {
	cfg        Config
	schemas    *schemaCache
	repeatable *http.Client // for calls that may be sent again
	single     *http.Client // for calls that must not
	breakers   *breakers
}

// New makes a Runner. It opens no connection.
func New(cfg Config) *Runner { return newRunner(cfg, newDialer(cfg)) }

// newDialer makes the one way in which a Runner reaches the network.
func newDialer(cfg Config) *dialer {
	return &dialer{Dialer: net.Dialer{Timeout: connectTimeout, Control: newGuardian(cfg)}, hosts: cfg.AllowHosts}
}

// newRunner lets tests choose how names are resolved and which addresses may be dialled.
func newRunner(cfg Config, d *dialer) *Runner {
	if cfg.Secrets == nil {
		cfg.Secrets = func(string) (string, bool) { return "", false }
	}
	if cfg.MaxReadBytes <= 0 {
		cfg.MaxReadBytes = defaultReadBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Runner{cfg: cfg, schemas: newSchemaCache(), repeatable: repeatableClient(d), single: singleClient(d), breakers: newBreakers()}
}

// Request is one send of a call.
type Request struct {
	Run     loop.RunRef
	Agent   string // "agents/support"
	Subject string // whom or what the run is about; may be empty
	Spec    loop.ToolSpec
	Call    loop.ToolCall
	Key     string // idempotency key, the same for every attempt of the call
	Attempt int    // from 1
	// MaxResult is how much of the result the model will see, in bytes. Zero: not known.
	MaxResult int64
}

// Call sends the call once and says in the reply's Outcome what came of it. It
// takes at most the spec's timeout, and returns soon after ctx ends. For tools
// that are not repeatable it puts at most one request on the wire.
func (r *Runner) Call(ctx context.Context, req Request) (reply loop.ToolReply) {
	start := time.Now()
	ex := &exchange{runner: r, req: req}
	defer func() {
		if fault := recover(); fault != nil {
			r.cfg.Log.ErrorContext(ctx, "tool call panicked", "tool", req.Spec.Name, "run", req.Run.ID, "call", req.Call.ID,
				"panic", fault, "stack", string(debug.Stack()))
			reply = ex.broken(ctx, errors.New("a fault inside loopd"))
		}
		reply.Duration = time.Since(start)
		r.cfg.Log.DebugContext(ctx, "tool call", "tool", req.Spec.Name, "run", req.Run.ID, "call", req.Call.ID,
			"attempt", req.Attempt, "outcome", reply.Outcome, "status", reply.Status, "bytes", reply.Bytes, "duration", reply.Duration)
	}()
	return ex.do(ctx)
}
