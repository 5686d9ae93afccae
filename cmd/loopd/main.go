// Command loopd runs LLM agent loops under guards: it is the server, the
// development server and the client in one binary.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // budgets follow the calendars of their zones, also where the system has none

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], Env{Getenv: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Stdin: os.Stdin})
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code. Tests call it.
func run(ctx context.Context, args []string, env Env) int {
	root := &cobra.Command{
		Use:           "loopd",
		Short:         "Runs LLM agent loops that stop when they should, and shows you why",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(env), devCommand(env), benchCommand(env), migrateCommand(env), providerCommand(env), doctorCommand(env), versionCommand(env))
	root.AddCommand(clientCommands(env)...)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w", err) })
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("unknown command %q: loopd --help lists them", args[0])
		}
		return cmd.Help()
	}
	root.Args = cobra.ArbitraryArgs
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return report(env.Stderr, root.ExecuteContext(ctx))
}

// version is set by the linker in releases.
var version = "0.1.0-dev"

func versionCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(env.Stdout, "loopd "+version+"\n")
			return err
		},
	}
}
