// Package server is loopd's outside: the gRPC services, their REST form with
// server-sent events, and the operators' endpoints.
//
// It never calls the engine. Both meet in Postgres: the server writes runs and
// signals and reads heads and journals, a worker of any replica does the rest.
//
// REST goes through an in-memory connection to the same gRPC server, so that
// interceptors, limits and errors cannot differ between the two.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

const (
	// maxReceive is the largest gRPC request. What REST lets in fits: a request is
	// smaller in gRPC.
	maxReceive = maxRunBody
	// maxAnswer is the largest answer that REST passes on: a page of 1000 events
	// with large tool results.
	maxAnswer = 256 << 20
	// loopbackBuffer is the size of the in-memory connection's buffer.
	loopbackBuffer = 1 << 20
)

// Config is what a Server needs. Store, Prices, ProviderKnown, ValidateTool, Log
// and Registerer are required.
type Config struct {
	Store *postgres.Store

	// Prices finds the complete price of a model, "provider/model". Its error says
	// why there is none.
	Prices func(model string) (loop.Price, error)
	// ProviderKnown reports whether a provider of this name is configured.
	ProviderKnown func(provider string) bool
	// Models lists the models that have a price, for the hints in errors. Nil: no hints.
	Models func() []string
	// ValidateTool says what is wrong with a tool of any kind, each problem with its fix,
	// and in front the field that it is about: "http.url: must be absolute". Of an agent
	// only the name and the version are known then.
	ValidateTool func(loop.ToolSpec) []string
	// ValidateArguments says what is wrong with arguments of a tool that a person wrote,
	// "" for nothing. Nil: nobody can.
	ValidateArguments func(spec loop.ToolSpec, args string) string
	// ValidateRule compiles a CEL condition of an approval or a policy; its error says
	// what is wrong. Nil: there can be no conditions.
	ValidateRule func(expr string) error
	// ValidateAssertion compiles a CEL assertion over answers and runs; its error says
	// what is wrong. Nil: there can be none.
	ValidateAssertion func(expr string) error
	// Builtin describes a tool of loopd's own: its description, schema and effect.
	// outputSchema is that of the agent which has it, nil for none or not known yet. Its
	// error says why there is no such tool. Nil: there are none.
	Builtin func(name loop.Builtin, outputSchema json.RawMessage) (loop.ToolSpec, error)
	// ImportOpenAPI makes tools of an OpenAPI document, with notes on what could not be
	// one. Nil: documents are refused.
	ImportOpenAPI func(doc []byte, baseURL, prefix string) (tools []loop.ToolSpec, notes []string, err error)
	// ListMCPTools asks the MCP server at a URL, with headers, for its tools. Its error
	// is shown to clients, so it must hold no secret. Nil: no server is asked.
	ListMCPTools func(ctx context.Context, at loop.MCPSpec) ([]MCPTool, error)
	// CallTool sends one call of an HTTP or MCP tool, in this process, as that of a run
	// which does not exist. Nil: nothing is ever sent.
	CallTool func(ctx context.Context, run loop.RunRef, spec loop.ToolSpec, args, key string) loop.ToolReply
	// ValidateSchema says what is wrong with an output schema. Nil: nothing is checked.
	ValidateSchema func(schema []byte) []string

	// Defaults are the limits of runs that set none, Ceilings the most that any may
	// ask for. Zero: loop.Defaults() and loop.Ceilings().
	Defaults, Ceilings loop.Limits

	// Retention is how long runs are kept for which nothing else is said. 0: for ever.
	Retention time.Duration
	// Shed says under which load requests are refused. The zero value: the defaults.
	Shed Shed

	// Console serves the paths of the HTTP port that are not the API's. Nil: they
	// are not found.
	Console http.Handler

	// Alive reports what is broken in this process for good. Nil: nothing ever is.
	Alive func() error
	// Conditions are shown by /readyz?verbose, beside those of the server. Nil: none.
	Conditions func() []Condition

	Log        *slog.Logger
	Registerer prometheus.Registerer
	Labels     *label.Set // values of the labels of metrics; nil: a set of its own
}

// Server serves the API. Create it with New, fork what Parts returns, end it with
// Shutdown and then the context of the parts. Its methods are safe for concurrent use.
type Server struct {
	cfg                Config
	store              *postgres.Store
	defaults, ceilings loop.Limits
	log                *slog.Logger
	metrics            *metrics
	validator          protovalidate.Validator
	hub                *hub
	feeds              *feeds
	taps               *taps
	gate               *gate
	specs              specCache

	grpc     *grpc.Server
	health   *health.Server
	http     *http.Server
	loopback *bufconn.Listener
	conn     *grpc.ClientConn // of the gateway, to loopback

	heartbeat time.Duration // between messages of a stream; see heartbeatEvery
	patience  time.Duration // with a client that takes nothing; see slowReader

	draining chan struct{} // closed by Drain
	drain    sync.Once
}

// New builds a server that does not serve yet. It fails if the configuration
// cannot work.
func New(cfg Config) (*Server, error) {
	if cfg.Defaults == (loop.Limits{}) {
		cfg.Defaults = loop.Defaults()
	}
	if cfg.Ceilings == (loop.Limits{}) {
		cfg.Ceilings = loop.Ceilings()
	}
	cfg.fill()
	for _, fault := range cfg.Defaults.Validate(cfg.Ceilings) {
		return nil, fmt.Errorf("default limits: %w", fault) // every run would be refused
	}
	m, err := newMetrics(cfg.Registerer, cfg.Labels)
	if err != nil {
		return nil, err
	}
	validator, err := protovalidate.New(protovalidate.WithMessageDescriptors(requests()...))
	if err != nil {
		return nil, fmt.Errorf("compile the rules of the protos: %w", err)
	}
	s := &Server{
		cfg: cfg, store: cfg.Store, defaults: cfg.Defaults, ceilings: cfg.Ceilings, log: cfg.Log,
		metrics: m, validator: validator, hub: newHub(), feeds: newFeeds(cfg.Store), gate: newGate(cfg.Shed, m.shed), taps: newTaps(), health: health.NewServer(),
		loopback: bufconn.Listen(loopbackBuffer), heartbeat: heartbeatEvery, patience: slowReader, draining: make(chan struct{}),
	}
	s.grpc = s.newGRPC()
	return s, s.openGateway()
}

// fill gives what is not set its meaning. What cannot be checked is refused.
func (c *Config) fill() {
	if c.Models == nil {
		c.Models = func() []string { return nil }
	}
	if c.ValidateSchema == nil {
		c.ValidateSchema = func([]byte) []string { return nil }
	}
	if c.ValidateArguments == nil {
		c.ValidateArguments = func(loop.ToolSpec, string) string {
			return "this loopd cannot check arguments: approve or deny the call as it is, or have a run call the tool"
		}
	}
	if c.ValidateRule == nil {
		c.ValidateRule = func(string) error { return errors.New("this loopd judges no conditions: leave it out") }
	}
	if c.ValidateAssertion == nil {
		c.ValidateAssertion = func(string) error { return errors.New("this loopd judges no assertions: leave it out") }
	}
	if c.Builtin == nil {
		c.Builtin = func(loop.Builtin, json.RawMessage) (loop.ToolSpec, error) {
			return loop.ToolSpec{}, errors.New("this loopd has no built-in tools")
		}
	}
	if c.ImportOpenAPI == nil {
		c.ImportOpenAPI = func([]byte, string, string) ([]loop.ToolSpec, []string, error) {
			return nil, nil, errors.New("this loopd imports no OpenAPI documents")
		}
	}
	if c.ListMCPTools == nil {
		c.ListMCPTools = func(context.Context, loop.MCPSpec) ([]MCPTool, error) {
			return nil, errors.New("this loopd calls no MCP servers")
		}
	}
	if c.CallTool == nil {
		c.CallTool = func(context.Context, loop.RunRef, loop.ToolSpec, string, string) loop.ToolReply {
			return loop.ToolReply{Outcome: loop.OutcomeNotSent, Content: "this loopd calls tools in runs only"}
		}
	}
}

func (s *Server) newGRPC() *grpc.Server {
	server := grpc.NewServer(
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithPropagators(propagation.TraceContext{}))),
		grpc.ChainUnaryInterceptor(s.metrics.grpc.UnaryServerInterceptor(), s.unary),
		grpc.ChainStreamInterceptor(s.metrics.grpc.StreamServerInterceptor(), s.stream),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxHeaderListSize(maxHeader),
		// A client that vanished is noticed within 2.5 minutes; one that asks more
		// often than every 10 s whether loopd is alive is cut off.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 30 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	loopdv1.RegisterAgentServiceServer(server, &agentService{s: s})
	loopdv1.RegisterRunServiceServer(server, &runService{s: s})
	loopdv1.RegisterToolServiceServer(server, &toolService{s: s})
	loopdv1.RegisterApprovalServiceServer(server, &approvalService{s: s})
	loopdv1.RegisterPolicyServiceServer(server, &policyService{s: s})
	loopdv1.RegisterUsageServiceServer(server, &usageService{s: s})
	loopdv1.RegisterBudgetServiceServer(server, &budgetService{s: s})
	loopdv1.RegisterGuardServiceServer(server, &guardService{s: s})
	loopdv1.RegisterRetentionServiceServer(server, &retentionService{s: s})
	healthpb.RegisterHealthServer(server, s.health)
	reflection.Register(server)
	return server
}

// openGateway connects REST to the gRPC server.
func (s *Server) openGateway() error {
	var err error
	s.conn, err = grpc.NewClient("passthrough:///loopback",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.loopback.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		return fmt.Errorf("open the gateway's connection: %w", err)
	}
	api, err := s.newAPI(context.Background(), s.conn)
	if err != nil {
		return err
	}
	s.http = &http.Server{
		Handler:           s.metrics.instrument(newHTTP(api, s.cfg.Console)),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	return nil
}

// Handler is what the HTTP port serves, for callers that bring their own server.
// It needs ServeLoopback to be running.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Parts are what must run while the server serves, each in its own goroutine,
// which the caller forks. Those that serve return nil after Shutdown, those that
// listen and announce when their context ends.
func (s *Server) Parts(grpcListener, httpListener net.Listener) []func(context.Context) error {
	return []func(context.Context) error{
		func(context.Context) error { return s.ServeGRPC(grpcListener) },
		func(context.Context) error { return s.ServeHTTP(httpListener) },
		func(context.Context) error { return s.ServeLoopback() },
		s.Wake,
		s.poll,
		s.watchLoad,
		s.announce,
		s.hear,
	}
}

// ServeGRPC serves gRPC on l until Shutdown.
func (s *Server) ServeGRPC(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}

// ServeHTTP serves REST on l until Shutdown.
func (s *Server) ServeHTTP(l net.Listener) error {
	if err := s.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}

// ServeLoopback serves the gateway's in-memory connection until Shutdown.
func (s *Server) ServeLoopback() error { return s.ServeGRPC(s.loopback) }

// Drain tells load balancers to go elsewhere and ends the event streams and waits;
// their clients ask another replica. Other calls are still served. Calling it
// twice does no harm.
func (s *Server) Drain() {
	s.drain.Do(func() {
		close(s.draining)
		s.health.Shutdown()
	})
}

// Draining reports whether Drain was called.
func (s *Server) Draining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Shutdown drains, lets calls in flight end, and cuts off those that still run
// when ctx ends. All parts return afterwards.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("shut down HTTP in order: %w", errors.Join(err, s.http.Close()))
	}
	stop := context.AfterFunc(ctx, s.grpc.Stop) // ends GracefulStop
	defer stop()
	s.grpc.GracefulStop()
	if closeErr := s.conn.Close(); closeErr != nil && status.Code(closeErr) != codes.Canceled {
		err = errors.Join(err, fmt.Errorf("close the gateway's connection: %w", closeErr))
	}
	return err
}
