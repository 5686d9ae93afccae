package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

// errProvider: a provider does not do what a run needs.
var errProvider = errors.New("the provider cannot run agents as it is")

// providerCommand looks at model providers from here, without a loopd that runs:
// with the flags and the environment that `loopd serve` would read.
func providerCommand(env Env) *cobra.Command {
	var c config
	group := &cobra.Command{Use: "provider", Short: "List models with their prices, and try a provider out"}
	c.flags(group.PersistentFlags(), env)
	group.AddCommand(providerList(&c, env), providerTest(&c, env))
	return group
}

// openBook opens the providers and the prices that go with them.
func openBook(c *config) (openedProviders, *pricing.Book, error) {
	if err := c.complete(); err != nil {
		return openedProviders{}, nil, err
	}
	opened, err := openProviders(*c)
	if err != nil {
		return opened, nil, err
	}
	book, err := openPrices(*c, opened.prices)
	return opened, book, err
}

func providerList(c *config, env Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "list [PROVIDER]", Short: "List models, context windows and prices in USD per million tokens", Args: cobra.MaximumNArgs(1),
		Long: "Lists the models of the providers that are configured here, with their context windows, their\n" +
			"prices in USD per million tokens, what they read besides text, and whether the provider is asked to\n" +
			"keep them to an agent's output schema. A model with a note cannot run.",
		RunE: func(_ *cobra.Command, args []string) error {
			opened, book, err := openBook(c)
			if err != nil {
				return err
			}
			names := slices.Sorted(maps.Keys(opened.models))
			if all {
				names = book.Providers()
			}
			if len(args) == 1 {
				names = args
			}
			if len(names) == 0 {
				fmt.Fprintln(env.Stderr, "no provider is configured: set LOOPD_ANTHROPIC_API_KEY, LOOPD_OPENAI_API_KEY or LOOPD_GEMINI_API_KEY, or write a --providers file; --all lists every priced model")
			}
			fmt.Fprintf(env.Stdout, "prices: %s, of %s\n", book.Version(), book.Date().Format(time.DateOnly))
			rows := [][]string{{"MODEL", "WINDOW", "MAX OUT", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "READS", "SCHEMA", "NOTE"}}
			for _, name := range names {
				for _, l := range book.List(name) {
					rows = append(rows, listingRow(l))
				}
			}
			return table(env.Stdout, rows)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all providers of the price book, configured or not")
	return cmd
}

// listingRow is one model as a row.
func listingRow(l pricing.Listing) []string {
	reads := []string{"text"}
	for _, kind := range l.Reads {
		reads = append(reads, string(kind))
	}
	schema := "-"
	if l.Structured {
		schema = "yes"
	}
	note := l.Why
	if len(l.Tiers) > 0 {
		note = strings.TrimSpace(note + " dearer above " + strconv.FormatInt(l.Tiers[0].AboveInput, 10) + " tokens")
	}
	return []string{
		l.Ref, tokens(l.Window), tokens(l.MaxOutput), perMillion(l.Rates.Input), perMillion(l.Rates.CacheRead),
		perMillion(l.Rates.CacheWrite5m), perMillion(l.Rates.Output), strings.Join(reads, ","), schema, note,
	}
}

// tokens writes a number of tokens, "-" for one that is not known.
func tokens(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// perMillion writes a price per token as one per million tokens.
func perMillion(perToken loop.USD) string { return (perToken * 1_000_000).String() }

func providerTest(c *config, env Env) *cobra.Command {
	var model string
	cmd := &cobra.Command{
		Use: "test PROVIDER", Short: "Send one tiny request and say what works", Args: cobra.ExactArgs(1),
		Long: "Sends one tiny request to a provider that is configured here and says what works: the key, the\n" +
			"streaming, a tool call, the usage report, the prompt cache. It costs less than a cent.",
		RunE: func(cmd *cobra.Command, args []string) error {
			opened, book, err := openBook(c)
			if err != nil {
				return err
			}
			client, ok := opened.models[args[0]]
			if !ok {
				return usagef("provider %q is not configured: there are %s", args[0], strings.Join(slices.Sorted(maps.Keys(opened.models)), ", "))
			}
			ref, price, err := testModel(book, args[0], model)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			fmt.Fprintf(env.Stdout, "asking %s\n", ref)
			return tryProvider(ctx, client, ref, price, env)
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the model to ask; default: the cheapest priced one")
	return cmd
}

// testModel is the model to try: the one that was named, else the cheapest of those
// that are well known, as their output cap shows. A named one needs no price.
func testModel(book *pricing.Book, name, model string) (string, *loop.Price, error) {
	if model != "" {
		ref := name + "/" + strings.TrimPrefix(model, name+"/")
		price, err := book.Price(ref)
		if err != nil {
			return ref, nil, nil //nolint:nilerr // the test says so
		}
		return ref, &price, nil
	}
	var cheapest *loop.Price
	for _, l := range book.List(name) {
		price, err := book.Price(l.Ref)
		if err == nil && l.MaxOutput > 0 && (cheapest == nil || price.Bound(1000, 1000) < cheapest.Bound(1000, 1000)) {
			cheapest = &price
		}
	}
	if cheapest == nil {
		return "", nil, usagef("no model of %q has a price: name one with --model", name)
	}
	return cheapest.Model, cheapest, nil
}

// testOutput is enough for one call of a tool, also by a model that thinks first.
const testOutput = 1024

// tryProvider asks for one tool call and says what came of it.
func tryProvider(ctx context.Context, client engine.Model, ref string, price *loop.Price, env Env) error {
	name, model := loop.SplitModel(ref)
	fragments := 0
	began := time.Now()
	answer, err := client.Generate(ctx, loop.ModelRequest{
		Provider: name, Model: model, Instructions: "You test a connection. Call the tool you are given, and say nothing.",
		Tools: []loop.ToolSpec{{
			Name: "ping", Description: "Answers the text it is given.",
			Schema: []byte(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`),
		}},
		Messages:        []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart(`Call ping with the text "hello".`)}}},
		MaxOutputTokens: testOutput, ToolsAllowed: true, CacheKey: "loopd-provider-test",
		Emit: func(loop.Delta) { fragments++ },
	})
	say := func(ok bool, what, detail string) {
		mark := map[bool]string{true: "✓", false: "✗"}[ok]
		fmt.Fprintf(env.Stdout, "%s %-9s  %s\n", mark, what, oneLine(detail))
	}
	if err != nil {
		what, fix := faultOf(err)
		say(false, what, err.Error())
		if fix != "" {
			fmt.Fprintln(env.Stdout, "  "+fix)
		}
		return errProvider
	}
	say(true, "auth", fmt.Sprintf("answered in %s as %s", time.Since(began).Round(time.Millisecond), firstOf(answer.ResponseModel, model)))
	say(fragments > 0, "streaming", fmt.Sprintf("%d fragments", fragments))
	calls := answer.Message.Calls()
	called := answer.Finish == loop.FinishToolCalls && len(calls) > 0 && calls[0].Name == "ping"
	say(called, "tools", fmt.Sprintf("%d calls, finished as %s (%s)", len(calls), answer.Finish, answer.NativeFinish))
	say(!answer.UsageMissing, "usage", usageLine(answer, price))
	say(true, "caching", cachingLine(answer))
	if !called || answer.UsageMissing {
		return errProvider
	}
	return nil
}

// faultOf names what failed, and what to do about it.
func faultOf(err error) (what, fix string) {
	me, ok := errors.AsType[*loop.ModelError](err)
	if !ok {
		return "request", ""
	}
	switch me.Class {
	case loop.ErrorAuth:
		return "auth", "The key is refused: look for a missing character, another account, or a project without this model."
	case loop.ErrorQuota:
		return "quota", "The key works, the account behind it has no credit left."
	case loop.ErrorThrottle:
		return "limits", "The key works, but its rate limit is used up at the moment."
	case loop.ErrorNotStarted:
		return "network", "Nothing answers at the base URL: look at its host and port, and at this machine's way out."
	case loop.ErrorTimeout:
		return "network", "The base URL takes connections but does not answer in time."
	case loop.ErrorRequest:
		return "request", "The model may not exist, or the base URL may lack its /v1: try another --model."
	}
	return "request", ""
}

func usageLine(a loop.ModelAnswer, price *loop.Price) string {
	if a.UsageMissing {
		return "not reported: every call would be charged at its whole hold"
	}
	line := fmt.Sprintf("%d tokens read, %d written", a.Usage.Input(), a.Usage.AllOutput())
	if price == nil {
		return line + "; this model has no price, so agents cannot use it: add it to the file that --prices names"
	}
	return line + ", " + price.Cost(a.Usage).Total().String() + " USD"
}

func cachingLine(a loop.ModelAnswer) string {
	if n := a.Usage.CacheRead + a.Usage.CacheWrite5m + a.Usage.CacheWrite1h; n > 0 {
		return fmt.Sprintf("%d tokens read from the cache, %d written to it", a.Usage.CacheRead, n-a.Usage.CacheRead)
	}
	return "nothing cached: a request this small never is, with most providers"
}
