package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/postgres"
)

func migrateCommand(env Env) *cobra.Command {
	var url string
	cmd := &cobra.Command{Use: "migrate", Short: "Bring the database's schema up to date, or say how it stands"}
	cmd.PersistentFlags().StringVar(&url, "database-url", firstOf(env.Getenv("LOOPD_DATABASE_DIRECT_URL"), env.Getenv("LOOPD_DATABASE_URL")),
		"Postgres to migrate, past any pooler [LOOPD_DATABASE_DIRECT_URL, LOOPD_DATABASE_URL]")
	need := func(*cobra.Command, []string) error {
		if url == "" {
			return usagef("there is no database: set LOOPD_DATABASE_URL or --database-url")
		}
		return nil
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Apply what is missing; safe to run many at once", Args: cobra.NoArgs, PreRunE: need,
			RunE: func(cmd *cobra.Command, _ []string) error { return postgres.Migrate(cmd.Context(), url) },
		},
		&cobra.Command{
			Use: "status", Short: "List the migrations and whether they are applied", Args: cobra.NoArgs, PreRunE: need,
			RunE: func(cmd *cobra.Command, _ []string) error {
				status, err := postgres.MigrationStatus(cmd.Context(), url)
				for _, m := range status {
					fmt.Fprintf(env.Stdout, "%v\n", m)
				}
				return err
			},
		},
	)
	return cmd
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
