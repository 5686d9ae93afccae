package mcp

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// TestTokens puts a server behind OAuth and tries it with the identity that its
// authorization server knows, with one that belongs to another authorization
// server, and with one that does not say to which.
func TestTokens(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		issuer  func(own string) string
		outcome loop.Outcome
		asked   int32 // how often the secret was sent to the server's authorization server
	}{
		"its own":   {func(own string) string { return own }, loop.OutcomeOK, 1},
		"another's": {func(string) string { return "https://login.example" }, loop.OutcomeNotSent, 0},
		"nobody's":  {func(string) string { return "" }, loop.OutcomeNotSent, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			inner := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
			outer := httptest.NewServer(guarded(inner, &asked))
			t.Cleanup(func() { outer.CloseClientConnections(); outer.Close() })
			c := newClient(t, func(cfg *Config) {
				cfg.Identity = func(string) (Identity, bool) {
					return Identity{ClientID: "loopd", ClientSecret: "hunter2", Issuer: tc.issuer(outer.URL)}, true
				}
			})

			reply := c.Call(t.Context(), request(outer.URL+"/mcp", loop.Irreversible))

			if reply.Outcome != tc.outcome || asked.Load() != tc.asked {
				t.Errorf("outcome %s, asked %d times; want %s, %d: %s", reply.Outcome, asked.Load(), tc.outcome, tc.asked, reply.Content)
			}
			if strings.Contains(reply.Content, "hunter2") {
				t.Errorf("the model sees the secret: %s", reply.Content)
			}
		})
	}
}

// guarded is a server that wants a token, and the authorization server that has it.
func guarded(inner http.Handler, asked *atomic.Int32) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sesame" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata="http://%s/.well-known/oauth-protected-resource/mcp"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, r *http.Request) {
		answer(w, fmt.Sprintf(`{"resource":"http://%[1]s/mcp","authorization_servers":["http://%[1]s"]}`, r.Host))
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, r *http.Request) {
		answer(w, fmt.Sprintf(`{"issuer":"http://%[1]s","token_endpoint":"http://%[1]s/token","authorization_endpoint":"http://%[1]s/authorize",
			"response_types_supported":["code"],"code_challenge_methods_supported":["S256"],
			"grant_types_supported":["client_credentials"],"token_endpoint_auth_methods_supported":["client_secret_basic"]}`, r.Host))
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if id, secret, ok := r.BasicAuth(); !ok || id != "loopd" || secret != "hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, `{"access_token":"sesame","token_type":"Bearer","expires_in":3600}`)
	})
	return mux
}
