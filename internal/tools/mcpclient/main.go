// Command mcpclient shows what loopd's MCP client makes of a server: it lists the
// tools and calls one, or those that the conformance suite looks for:
//
//	go run ./internal/tools/mcpclient -tool echo -args '{"message":"hi"}' http://127.0.0.1:3001/mcp
//	go run ./internal/tools/mcpclient -tool get-env -args '{}' -command 'npx mcp-server-everything stdio'
//	conformance client --command "mcpclient" --scenario tools_call
//
// The suite puts the server's URL last, and what an OAuth client needs into
// MCP_CONFORMANCE_CONTEXT. It counts a scenario without checks as passed, so look
// for a count above zero.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
	"github.com/loopd/loopd/internal/tool/mcp"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mcpclient:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	name := flag.String("tool", "", "call this tool; without it, those that the conformance suite looks for")
	args := flag.String("args", "{}", "the arguments of -tool, as a JSON object")
	effect := flag.String("effect", string(loop.Irreversible), "the effect of -tool")
	command := flag.String("command", "", "start this instead of connecting to a URL; words are split at spaces")
	environ := flag.String("env", "PATH="+os.Getenv("PATH"), "the environment of -command, split at commas")
	timeout := flag.Duration("timeout", 20*time.Second, "of each call")
	flag.Parse()

	spec := loop.MCPSpec{URL: flag.Arg(flag.NArg() - 1), Command: strings.Fields(*command)}
	id, hasID, err := identity(ctx, spec.URL)
	if err != nil {
		return err
	}
	client := mcp.New(mcp.Config{
		Transport: &http.Transport{}, AllowCommands: true, CommandEnv: strings.Split(*environ, ","),
		Identity: func(string) (mcp.Identity, bool) { return id, hasID },
	})
	defer client.Close()
	definitions, err := client.List(ctx, spec)
	if err != nil {
		return err
	}
	calls := map[string]string{"add_numbers": `{"a":5,"b":3}`, "test_reconnection": `{}`, "test-tool": `{}`}
	if *name != "" {
		calls = map[string]string{*name: *args}
	}
	failed := false
	for _, s := range mcp.Specs(spec, definitions, map[string]loop.Effect{*name: loop.Effect(*effect)}) {
		fmt.Printf("tool %s %s %s\n", s.MCP.Tool, s.Effect, s.MCP.Hash)
		text, called := calls[s.MCP.Tool]
		if !called {
			continue
		}
		s.Timeout = *timeout
		reply := client.Call(ctx, tool.Request{
			Run: loop.RunRef{ID: "conformance"}, Spec: s, Call: loop.ToolCall{ID: "c1-1", Name: s.Name, Args: text},
			Key: "loopd:conformance:c1-1", Attempt: 1,
		})
		fmt.Printf("call %s %s after %s: %s\n", s.MCP.Tool, reply.Outcome, reply.Duration.Round(time.Millisecond), reply.Content)
		failed = failed || reply.Outcome != loop.OutcomeOK
	}
	if failed {
		return errors.New("a call failed")
	}
	return nil
}

// identity reads the OAuth client that the conformance suite registered. The
// suite does not say where, so the server is asked; only here is that safe.
func identity(ctx context.Context, server string) (id mcp.Identity, ok bool, err error) {
	var given struct {
		ClientID     string `json:"client_id"`
		ClientSecret string `json:"client_secret"`
	}
	text := os.Getenv("MCP_CONFORMANCE_CONTEXT")
	if text == "" {
		return id, false, nil
	}
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		return id, false, fmt.Errorf("MCP_CONFORMANCE_CONTEXT: %w", err)
	}
	if given.ClientSecret == "" {
		return id, false, nil
	}
	u, err := url.Parse(server)
	if err != nil {
		return id, false, fmt.Errorf("the server's URL: %w", err)
	}
	u.Path = "/.well-known/oauth-protected-resource" + u.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return id, false, fmt.Errorf("the server's URL: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return id, false, fmt.Errorf("ask where to authorize: %w", err)
	}
	defer resp.Body.Close()
	var resource struct {
		Servers []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&resource); err != nil || len(resource.Servers) == 0 {
		return id, false, fmt.Errorf("the server does not say where to authorize: %w", err)
	}
	return mcp.Identity{ClientID: given.ClientID, ClientSecret: given.ClientSecret, Issuer: resource.Servers[0]}, true, nil
}
