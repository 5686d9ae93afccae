package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// defaultServer is where `loopd dev` and `loopd serve` listen for gRPC.
const defaultServer = "127.0.0.1:8081"

// client is a terminal's view of a loopd: the flags that all client commands
// share, and the services behind them once connect has run.
type client struct {
	env    Env
	server string
	output string

	conn      *grpc.ClientConn
	runs      loopdv1.RunServiceClient
	approvals loopdv1.ApprovalServiceClient
	agents    loopdv1.AgentServiceClient
	tools     loopdv1.ToolServiceClient
	policies  loopdv1.PolicyServiceClient
	usage     loopdv1.UsageServiceClient
	budgets   loopdv1.BudgetServiceClient
	guards    loopdv1.GuardServiceClient
	keeps     loopdv1.RetentionServiceClient

	// How long to wait before a broken stream is asked for again, and after how
	// many tries in a row that brought nothing to give up. 10 tries at 2 s are
	// longer than a rolling update of a small deployment takes.
	retryWait  time.Duration
	retryTries int
	// A stream that says nothing for this long is dead: the server promises a
	// heartbeat every 15 s.
	silence time.Duration
	// Whether somebody looks at a writer.
	terminal func(io.Writer) bool
	// The time, from which is said how much of it a person has left.
	now func() time.Time
}

// clientCommands are the commands that talk to a running loopd.
func clientCommands(env Env) []*cobra.Command {
	c := &client{env: env, retryWait: 2 * time.Second, retryTries: 10, silence: 45 * time.Second, terminal: isTerminal, now: time.Now}
	return c.groups()
}

// groups are those commands, one group for each noun, or the one command of a noun.
func (c *client) groups() []*cobra.Command {
	groups := []*cobra.Command{
		c.runCommand(), c.approvalCommand(), c.agentCommand(), c.toolCommand(), c.policyCommand(), c.budgetCommand(), c.usageCommand(),
		c.guardCommand(), c.retentionCommand(),
	}
	for _, group := range groups {
		c.prepare(group)
	}
	return groups
}

// prepare gives a group of commands the shared flags, and makes of every misuse
// a usage error.
func (c *client) prepare(group *cobra.Command) {
	server := c.env.Getenv("LOOPD_SERVER")
	if server == "" {
		server = defaultServer
	}
	group.PersistentFlags().StringVar(&c.server, "server", server, "gRPC address of loopd (env LOOPD_SERVER)")
	group.PersistentFlags().StringVarP(&c.output, "output", "o", "table", "table or json")
	group.PersistentPreRunE = func(*cobra.Command, []string) error { return c.connect() }
	group.PersistentPostRunE = func(*cobra.Command, []string) error { return c.conn.Close() }
	if group.HasSubCommands() {
		group.Args = cobra.ArbitraryArgs
		group.RunE = func(cmd *cobra.Command, args []string) error {
			return usagef("%s needs one of its commands, not %q: see %s --help", cmd.CommandPath(), strings.Join(args, " "), cmd.CommandPath())
		}
	}
	for _, cmd := range append(group.Commands(), group) {
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(c.env.Stdout)
		cmd.SetErr(c.env.Stderr)
		cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			return usagef("%w: see %s --help", err, cmd.CommandPath())
		})
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usagef("%w: the usage is %s", err, cmd.UseLine())
			}
			return nil
		}
	}
}

// connect makes the connection, without waiting for the server. It is not
// encrypted: reach a server on another machine through a tunnel or a mesh.
func (c *client) connect() error {
	if c.output != "table" && c.output != "json" {
		return usagef("--output %s: it is table or json", c.output)
	}
	// A transcript may be larger than gRPC's default of 4 MiB.
	conn, err := grpc.NewClient(c.server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithUnaryInterceptor(c.unary))
	if err != nil {
		return usagef("--server %s: %w", c.server, err)
	}
	c.conn, c.runs, c.approvals = conn, loopdv1.NewRunServiceClient(conn), loopdv1.NewApprovalServiceClient(conn)
	c.agents, c.tools, c.policies = loopdv1.NewAgentServiceClient(conn), loopdv1.NewToolServiceClient(conn), loopdv1.NewPolicyServiceClient(conn)
	c.usage = loopdv1.NewUsageServiceClient(conn)
	c.budgets = loopdv1.NewBudgetServiceClient(conn)
	c.guards = loopdv1.NewGuardServiceClient(conn)
	c.keeps = loopdv1.NewRetentionServiceClient(conn)
	return nil
}

// toolPatience is how long a call of a tool is waited for: the longest timeout that a
// tool may have, and what a request takes besides.
const toolPatience = 10*time.Minute + requestPatience

// requestPatience is the same for all other requests.
const requestPatience = 30 * time.Second

// unary bounds a request and explains a server that is not there.
func (c *client) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	most := requestPatience
	if method == loopdv1.ToolService_CallTool_FullMethodName {
		most = toolPatience
	}
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := invoke(limited, method, req, reply, conn, opts...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.explain(err)
}

// explain adds what to do to the error of a server that cannot be reached. An error
// with details comes from a loopd that was.
func (c *client) explain(err error) error {
	if status.Code(err) != codes.Unavailable || len(status.Convert(err).Details()) > 0 {
		return err
	}
	return fmt.Errorf("no loopd answers at %s: start one with `loopd dev`, or name another with --server or LOOPD_SERVER (%w)", c.server, err)
}

// runName accepts a run as "runs/ID" or as its id.
func runName(arg string) string { return withPrefix("runs/", arg) }

// agentName accepts an agent as "agents/ID" or as its id.
func agentName(arg string) string { return withPrefix("agents/", arg) }

func withPrefix(prefix, arg string) string {
	if arg == "" || strings.HasPrefix(arg, prefix) {
		return arg
	}
	return prefix + arg
}

// allPages asks for page after page, each by the token that the one before gave.
func allPages(page func(token string) (next string, err error)) error {
	for token := ""; ; {
		next, err := page(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// ask puts a question on standard error and reads one line of standard input.
func (c *client) ask(question string) string {
	fmt.Fprint(c.env.Stderr, question)
	line, err := bufio.NewReader(c.env.Stdin).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(c.env.Stderr) // nobody pressed Enter
	}
	return strings.TrimSpace(line)
}

// confirm asks a question, and takes nothing but a plain yes for one.
func (c *client) confirm(question string) bool {
	answer := strings.ToLower(c.ask(question + " [y/N] "))
	return answer == "y" || answer == "yes"
}

// readText gives a text that a flag or an argument holds, or names as "@FILE" or,
// for standard input, "@-".
func (c *client) readText(arg string) (string, error) {
	file, named := strings.CutPrefix(arg, "@")
	if !named {
		return arg, nil
	}
	in := c.env.Stdin
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file to read
		if err != nil {
			return "", usagef("read the text: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return "", fmt.Errorf("read the text of %s: %w", arg, err)
	}
	return string(text), nil
}

// callName accepts a call as "runs/RUN/toolCalls/CALL", as "RUN/CALL" or as the two
// words RUN and CALL, and returns its name and that of its run.
func callName(args ...string) (call, run string, err error) {
	arg := strings.Join(args, "/")
	id, callID, ok := strings.Cut(strings.TrimPrefix(arg, "runs/"), "/")
	callID = strings.TrimPrefix(callID, "toolCalls/")
	if !ok || id == "" || callID == "" || strings.Contains(callID, "/") {
		return "", "", usagef("%q names no tool call: write RUN/CALL, such as 0193e9a4-5c1e-7b60-8f0a-0d6a3c1f2b4d/c3-1", arg)
	}
	run = "runs/" + id
	return run + "/toolCalls/" + callID, run, nil
}
