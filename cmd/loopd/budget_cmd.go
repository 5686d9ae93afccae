package main

import (
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) budgetCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "budget",
		Short: "Keep the money that runs share, and raise it",
	}
	group.AddCommand(c.budgetCreate(), c.budgetList(), c.budgetShow(), c.budgetRaise(), c.budgetUpdate(), c.budgetArchive(), c.budgetEvents())
	return group
}

// budgetName accepts a budget as "budgets/ID" or as its id.
func budgetName(arg string) string { return withPrefix("budgets/", arg) }

// verdictFlag declares the flag that says what a budget does when its money is gone.
func verdictFlag(cmd *cobra.Command, verdict *string) {
	cmd.Flags().StringVar(verdict, "when-spent", "", "what a run does for which no money is left: wrap-up, pause or stop (default wrap-up)")
}

// spentVerdict reads that flag.
func spentVerdict(text string) (loopdv1.GuardVerdict, error) {
	switch text {
	case "":
		return loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED, nil
	case "wrap-up":
		return loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, nil
	case "pause":
		return loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE, nil
	case "stop":
		return loopdv1.GuardVerdict_GUARD_VERDICT_STOP, nil
	}
	return 0, usagef("--when-spent %s: it is wrap-up, pause or stop", text)
}

func (c *client) budgetCreate() *cobra.Command {
	budget := &loopdv1.Budget{}
	var agent, label, window, verdict string
	cmd := &cobra.Command{
		Use:   "create BUDGET --amount USD --per WINDOW",
		Short: "Create a budget for all runs, or those of an agent or with a label",
		Long: `Create a budget for all runs, for those of an agent or for those with a label.

It holds from now on, for the window that has begun too: what its runs have spent in
that window counts. A budget per run is a ceiling of what a run may ask for.`,
		Args: cobra.ExactArgs(1),
		Example: `  loopd budget create acme-daily --amount 100 --per day --time-zone Europe/Berlin
  loopd budget create trial --amount 5 --per month --label plan=trial --when-spent pause
  loopd budget create research-run --amount 2.50 --per run --agent research`,
	}
	flags := cmd.Flags()
	flags.StringVar(&budget.AmountUsd, "amount", "", "USD for each window (required)")
	flags.StringVar(&window, "per", "", "the window: run, hour, day, month or total (required)")
	flags.StringVar(&budget.TimeZone, "time-zone", "", `where hours, days and months begin, such as "Europe/Berlin" (default UTC)`)
	flags.StringVar(&agent, "agent", "", "only runs of this agent")
	flags.StringVar(&label, "label", "", "only runs with this label, as KEY=VALUE")
	flags.StringVar(&budget.DisplayName, "display-name", "", "the name for people (default BUDGET)")
	verdictFlag(cmd, &verdict)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		number := loopdv1.BudgetWindow_value["BUDGET_WINDOW_"+strings.ToUpper(window)]
		if budget.AmountUsd == "" || number == 0 {
			return usagef("budget create needs --amount USD and --per run, hour, day, month or total")
		}
		budget.Window = loopdv1.BudgetWindow(number)
		var err error
		if budget.Verdict, err = spentVerdict(verdict); err != nil {
			return err
		}
		key, value, isLabel := strings.Cut(label, "=")
		switch {
		case agent != "" && label != "":
			return usagef("--agent and --label: a budget is for one of them")
		case agent != "":
			budget.Scope = &loopdv1.Budget_Agent{Agent: agentName(agent)}
		case isLabel:
			budget.Scope = &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: key, Value: value}}
		case cmd.Flags().Changed("label") || cmd.Flags().Changed("agent"):
			return usagef("--label is KEY=VALUE and --agent names an agent: for all runs leave both out")
		}
		id := strings.TrimPrefix(args[0], "budgets/")
		return c.writeBudget(c.budgets.CreateBudget(cmd.Context(), &loopdv1.CreateBudgetRequest{BudgetId: id, Budget: budget}))
	}
	return cmd
}

// writeBudget writes a budget as it is after a change.
func (c *client) writeBudget(budget *loopdv1.Budget, err error) error {
	if err != nil {
		return err
	}
	if c.output == "json" {
		return writeJSON(c.env.Stdout, budget)
	}
	return table(c.env.Stdout, [][]string{{budget.GetName(), usd(budget.GetAmountUsd()), "per " + windowOf(budget), budgetMoney(budget)}})
}

func (c *client) budgetList() *cobra.Command {
	var archived bool
	cmd := &cobra.Command{Use: "list", Short: "List budgets and where they stand", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&archived, "archived", false, "list archived budgets as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all := &loopdv1.ListBudgetsResponse{}
		err := allPages(func(token string) (string, error) {
			page, err := c.budgets.ListBudgets(cmd.Context(), &loopdv1.ListBudgetsRequest{PageSize: pageSize, PageToken: token, ShowArchived: archived})
			all.Budgets = append(all.Budgets, page.GetBudgets()...)
			return page.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return table(c.env.Stdout, budgetRows(all.GetBudgets()))
	}
	return cmd
}

func (c *client) budgetShow() *cobra.Command {
	return &cobra.Command{
		Use: "show BUDGET", Short: "Show a budget, where it stands and how it ended its last windows", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := budgetName(args[0])
			budget, err := c.budgets.GetBudget(cmd.Context(), &loopdv1.GetBudgetRequest{Name: name})
			if err != nil {
				return err
			}
			if c.output == "json" {
				return writeJSON(c.env.Stdout, budget)
			}
			if err := showBudget(c.env.Stdout, budget, c.now()); err != nil || budget.GetCurrent() == nil {
				return err
			}
			const windows = 8 // a week of days and the present one
			periods, err := c.budgets.ListBudgetPeriods(cmd.Context(), &loopdv1.ListBudgetPeriodsRequest{Parent: name, PageSize: windows})
			if err != nil {
				return err
			}
			return showPeriods(c.env.Stdout, periods.GetPeriods())
		},
	}
}

func (c *client) budgetRaise() *cobra.Command {
	req := &loopdv1.RaiseBudgetRequest{}
	var to, by string
	cmd := &cobra.Command{
		Use:     "raise BUDGET --by USD",
		Short:   "Raise a budget's amount for good; runs that wait for it go on",
		Args:    cobra.ExactArgs(1),
		Example: `  loopd budget raise acme-daily --by 20 --reason "launch day"`,
	}
	cmd.Flags().StringVar(&by, "by", "", "USD to add")
	cmd.Flags().StringVar(&to, "to", "", "the new amount in USD")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&req.RequestId, "request-id", "", "makes the command safe to repeat: the same id raises once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case (by == "") == (to == ""):
			return usagef("budget raise needs --by USD or --to USD")
		case by != "":
			req.Raise = &loopdv1.RaiseBudgetRequest_ByUsd{ByUsd: by}
		default:
			req.Raise = &loopdv1.RaiseBudgetRequest_AmountUsd{AmountUsd: to}
		}
		req.Name = budgetName(args[0])
		return c.writeBudget(c.budgets.RaiseBudget(cmd.Context(), req))
	}
	return cmd
}

func (c *client) budgetUpdate() *cobra.Command {
	budget := &loopdv1.Budget{}
	var verdict, reason string
	cmd := &cobra.Command{
		Use:   "update BUDGET",
		Short: "Change a budget's amount, name, or what it does when it is spent",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&budget.AmountUsd, "amount", "", "USD for each window, also less than before")
	cmd.Flags().StringVar(&budget.DisplayName, "display-name", "", "the name for people")
	cmd.Flags().StringVar(&budget.Etag, "etag", "", "change it only if it still has this etag: see budget show -o json")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	verdictFlag(cmd, &verdict)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if budget.Verdict, err = spentVerdict(verdict); err != nil {
			return err
		}
		if budget.AmountUsd == "" && budget.DisplayName == "" && verdict == "" {
			return usagef("budget update needs --amount, --display-name or --when-spent")
		}
		budget.Name = budgetName(args[0])
		return c.writeBudget(c.budgets.UpdateBudget(cmd.Context(), &loopdv1.UpdateBudgetRequest{Budget: budget, Reason: reason}))
	}
	return cmd
}

func (c *client) budgetArchive() *cobra.Command {
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use:   "archive BUDGET",
		Short: "Retire a budget for good: it bounds nothing more",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := budgetName(args[0])
		if !yes && !c.confirm("Archive "+name+" for good? Its runs may spend without it then, and its id is never given out again.") {
			return errUnchanged
		}
		return c.writeBudget(c.budgets.ArchiveBudget(cmd.Context(), &loopdv1.ArchiveBudgetRequest{Name: name, Reason: reason}))
	}
	return cmd
}

func (c *client) budgetEvents() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{Use: "events BUDGET", Short: "List what happened to a budget, newest first", Args: cobra.ExactArgs(1)}
	cmd.Flags().Int32Var(&limit, "limit", 50, "at most so many, up to 1000")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 1 {
			return usagef("--limit %d: list at least one", limit)
		}
		events, err := c.budgets.ListBudgetEvents(cmd.Context(), &loopdv1.ListBudgetEventsRequest{Parent: budgetName(args[0]), PageSize: limit})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, events)
		}
		return table(c.env.Stdout, budgetEventRows(events.GetEvents()))
	}
	return cmd
}
