package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	// discoverTimeout bounds the question that servers of before July 2026 do not
	// know, so that one which never answers it can still be greeted the old way.
	discoverTimeout = 5 * time.Second

	methodDiscover = "server/discover"
)

// session is a connection to a server that calls share.
type session struct {
	client *Client
	server server

	ready  chan struct{} // closed when connected, or not to be
	err    error         // why not; written before ready is closed
	sdk    *sdk.ClientSession
	kill   func()      // ends what is left of a command; nil over HTTP
	greets atomic.Bool // it is being opened

	// Guarded by Client.mu.
	users   int
	retired bool // takes no more calls; closed when the last has left
	idle    *time.Timer

	mu          sync.Mutex
	flights     map[string]*watched     // calls by progress token
	stop        context.CancelCauseFunc // ends connect
	over        error                   // nothing is to be begun any more, and why
	changes     int                     // how often the list of tools was said to have changed
	definitions []Definition
	listed      time.Time // when the list was asked for; zero: never, or it changed since
}

// watched is a call that waits for its answer.
type watched struct {
	giveUp  context.CancelCauseFunc
	silence *time.Timer // nil: it may be silent as long as it likes
}

// enter finds or opens a session and keeps it until leave. It reports whether
// the session was opened just now.
func (c *Client) enter(ctx context.Context, to server) (s *session, fresh bool, err error) {
	for {
		s, fresh, err := c.join(to)
		if err != nil {
			return nil, false, err
		}
		if fresh {
			s.err = s.connect(ctx)
			close(s.ready)
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			c.leave(s)
			return nil, false, ctx.Err()
		}
		if s.err == nil {
			return s, fresh, nil
		}
		c.retire(s)
		c.leave(s)
		// Whoever opens a session may be out of time before those who wait for it.
		gaveUp := errors.Is(s.err, context.Canceled) || errors.Is(s.err, context.DeadlineExceeded)
		if fresh || !gaveUp || ctx.Err() != nil {
			return nil, false, s.err
		}
	}
}

// join takes part in the session with a server, which is to be opened if fresh.
func (c *Client) join(to server) (s *session, fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false, errClosed
	}
	s, ok := c.sessions[to.key]
	if !ok {
		s = &session{client: c, server: to, ready: make(chan struct{}), flights: map[string]*watched{}}
		c.sessions[to.key] = s
		c.open.Add(1)
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.users++
	return s, !ok, nil
}

// leave gives a session back. The last to leave one that is retired has it
// closed, by a timer: nobody should wait for a server's goodbye.
func (c *Client) leave(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
	switch {
	case s.users > 0:
	case s.retired:
		time.AfterFunc(0, s.close)
	default:
		s.idle = time.AfterFunc(c.cfg.KeepIdle, func() { c.expire(s) })
	}
}

// expire closes a session that nobody has used for long.
func (c *Client) expire(s *session) {
	c.mu.Lock()
	unused := s.users == 0 && !s.retired
	if unused {
		s.retired = true
		delete(c.sessions, s.server.key)
	}
	c.mu.Unlock()
	if unused {
		s.close()
	}
}

// retire makes the next call open a new session. Calls in flight go on.
func (c *Client) retire(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.retired = true
	if c.sessions[s.server.key] == s {
		delete(c.sessions, s.server.key)
	}
}

// close ends a session that nobody uses. It happens once: to the last user of a
// retired session, or by whoever retires an unused one.
func (s *session) close() {
	defer s.client.open.Done()
	if s.sdk != nil {
		_ = s.sdk.Close() // the server may be gone; there is nobody to tell
	}
	if s.kill != nil {
		s.kill()
	}
}

// giveUp ends all that is under way.
func (s *session) giveUp(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = cause
	if s.stop != nil {
		s.stop(cause)
	}
	for _, w := range s.flights {
		w.giveUp(cause)
	}
}

// connect opens the session: no capability is offered, so servers have nothing
// to ask of loopd.
func (s *session) connect(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.mu.Lock()
	over := s.over
	s.stop = stop
	s.mu.Unlock()
	if over != nil {
		return over
	}
	s.greets.Store(true)
	defer s.greets.Store(false)

	transport, err := s.transport(ctx)
	if err != nil {
		return err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "loopd", Version: "1"}, &sdk.ClientOptions{
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true}, // it would send a call again by itself
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { s.changed() },
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) { s.progress(req.Params) },
	})
	client.AddSendingMiddleware(sending)
	connected, err := client.Connect(ctx, transport, nil)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("open a session with the MCP server: %w", err)
	}
	s.sdk = connected
	// Some servers let anybody in and want a token for the list. Nothing is called
	// without the list, so it is part of the greeting.
	_, err = s.list(ctx, 0)
	return err
}

// transport is how the server is reached.
func (s *session) transport(ctx context.Context) (sdk.Transport, error) {
	if len(s.server.command) > 0 {
		p := newPipe(ctx, s.server.command, s.client.cfg.CommandEnv)
		s.kill = p.kill
		return p, nil
	}
	t := &sdk.StreamableClientTransport{
		Endpoint: s.server.url,
		HTTPClient: &http.Client{
			Transport:     &wire{client: s.client, session: s, header: s.server.header},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		MaxRetries:   maxResumes + 2, // the wire gives up first, for the one call only
		MaxEventSize: -1,             // the wire bounds events
	}
	id, ok := s.client.cfg.Identity(s.server.url)
	if !ok {
		return t, nil
	}
	if id.Issuer == "" {
		return nil, errors.New("identity: needs an issuer, or any MCP server could have the secret sent to itself")
	}
	handler, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{
		Credentials: &oauthex.ClientCredentials{
			ClientID: id.ClientID, Issuer: id.Issuer,
			ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: id.ClientSecret},
		},
		HTTPClient: &http.Client{Transport: s.client.repeatable, CheckRedirect: t.HTTPClient.CheckRedirect},
	})
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	t.OAuthHandler = handler
	return t, nil
}

// authorizes reports whether a refusal may be answered with a token. Only while
// the session is opened: a call is not sent again, and the SDK's handler is not
// made for several callers.
func (s *session) authorizes() bool {
	_, ok := s.client.cfg.Identity(s.server.url)
	return ok && s.greets.Load()
}

// sending stands between the SDK's methods and its transport.
func sending(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method == methodDiscover {
			bounded, cancel := context.WithTimeout(ctx, discoverTimeout)
			defer cancel()
			ctx = bounded
		}
		result, err := next(ctx, method, req)
		if list, ok := result.(*sdk.ListToolsResult); ok && err == nil {
			list.TTLMs = 0 // how long a definition is believed is not the server's to say
		}
		return result, err
	}
}

// changed forgets the definitions.
func (s *session) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.listed = time.Time{}
}

// progress is a sign of life of a call.
func (s *session) progress(params *sdk.ProgressNotificationParams) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := s.flights[fmt.Sprint(params.ProgressToken)]; ok && w.silence != nil {
		w.silence.Reset(s.client.cfg.MaxSilence)
	}
}

// call sends tools/call. What came back is in the flight; err says why nothing did.
func (s *session) call(ctx context.Context, f *flight, tool string, args json.RawMessage, meta sdk.Meta) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	f.giveUp = giveUp
	token := strconv.FormatInt(s.client.tokens.Add(1), 10)
	w := &watched{giveUp: giveUp}
	s.mu.Lock()
	if limit := s.client.cfg.MaxSilence; limit > 0 {
		w.silence = time.AfterFunc(limit, func() { giveUp(errSilent) })
		defer w.silence.Stop()
	}
	s.flights[token] = w
	over := s.over
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.flights, token)
	}()

	if over != nil {
		return over
	}
	params := &sdk.CallToolParams{Meta: meta, Name: tool, Arguments: args}
	params.SetProgressToken(token)
	_, err := s.sdk.CallTool(withFlight(ctx, f), params)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
