package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/postgres"
)

// errUnhealthy: loopd serve would not work here.
var errUnhealthy = errors.New("something above keeps loopd from working")

// finding is what the doctor says of one thing.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"` // one of the levels below
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// How bad a finding is.
const (
	levelOK   = "ok"
	levelWarn = "warn" // works, and something is worse than it could be
	levelFail = "fail" // does not work
)

// maxSkew is where a difference of clocks is worth a word. loopd uses the database's time
// for leases, waits and budgets; logs and traces have this machine's.
const maxSkew = time.Second

func doctorCommand(env Env) *cobra.Command {
	var c config
	var asJSON bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check configuration, database, clock and providers, and say the fix", Args: cobra.NoArgs,
		Long: "Checks what loopd serve would need, with the flags and the environment that it would read. It\n" +
			"changes nothing and spends nothing: providers are only connected to (loopd provider test asks\n" +
			"one). Exit code 1: something keeps loopd from working.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := diagnose(cmd.Context(), c)
			if asJSON {
				encoder := json.NewEncoder(env.Stdout)
				encoder.SetIndent("", "  ")
				if err := encoder.Encode(findings); err != nil {
					return fmt.Errorf("write the findings: %w", err)
				}
			} else if err := table(env.Stdout, findingRows(findings)); err != nil {
				return err
			}
			if slices.ContainsFunc(findings, func(f finding) bool { return f.Level == levelFail }) {
				return &exitError{code: exitOther, err: errUnhealthy}
			}
			return nil
		},
	}
	c.flags(cmd.Flags(), env)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the findings as JSON")
	return cmd
}

func findingRows(findings []finding) [][]string {
	rows := [][]string{{"", "CHECK", "FOUND", "FIX"}}
	for _, f := range findings {
		rows = append(rows, []string{f.Level, f.Check, clean(f.Detail), f.Fix})
	}
	return rows
}

// diagnose looks at everything that can be looked at; what depends on something broken is
// left out.
func diagnose(ctx context.Context, c config) []finding {
	found := []finding{checkConfig(&c)}
	found = append(found, checkPorts(ctx, c)...)
	found = append(found, checkDatabase(ctx, c)...)
	found = append(found, checkProviders(ctx, c)...)
	if c.otlp != "" {
		found = append(found, checkReach(ctx, "traces", c.otlp, levelWarn, "start the collector, or correct --otlp-endpoint; runs work without it"))
	}
	return found
}

func checkConfig(c *config) finding {
	if err := c.complete(); err != nil {
		return finding{"configuration", levelFail, err.Error(), "correct the flag or the variable that is named"}
	}
	if _, err := c.captured(); err != nil {
		return finding{"configuration", levelFail, err.Error(), "correct the variable that is named"}
	}
	return finding{Check: "configuration", Level: levelOK, Detail: "hash " + c.hash()}
}

// checkPorts finds ports that somebody has already, mostly another loopd.
func checkPorts(ctx context.Context, c config) (found []finding) {
	for _, p := range []struct{ flag, addr string }{{"--http-addr", c.httpAddr}, {"--grpc-addr", c.grpcAddr}, {"--admin-addr", c.adminAddr}} {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.addr)
		if err != nil {
			found = append(found, finding{"port", levelWarn, err.Error(), "if this is not the loopd that you mean to look at, choose another address with " + p.flag})
			continue
		}
		_ = lis.Close()
	}
	if len(found) == 0 {
		found = []finding{{Check: "port", Level: levelOK, Detail: fmt.Sprintf("%s, %s and %s are free", c.httpAddr, c.grpcAddr, c.adminAddr)}}
	}
	return found
}

// checkDatabase connects as loopd does, and past the pooler.
func checkDatabase(ctx context.Context, c config) []finding {
	if c.databaseURL == "" {
		return []finding{{"database", levelFail, "no database is configured", "set LOOPD_DATABASE_URL or --database-url, or try loopd dev, which starts its own"}}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, firstOf(c.directURL, c.databaseURL))
	if err != nil {
		return []finding{{"database", levelFail, redactor(nil)(err.Error()), "start Postgres, or correct the address, user and password in LOOPD_DATABASE_URL"}}
	}
	defer func() { _ = conn.Close(ctx) }()
	d := databaseDoctor{ctx, conn}
	found := []finding{d.server(), d.clock(), d.durability(), d.connections()}
	return append(found, d.schema(c), d.listening(c))
}

// databaseDoctor asks one connection.
type databaseDoctor struct {
	ctx  context.Context //nolint:containedctx // of one command
	conn *pgx.Conn
}

// ask reads one row.
func (d databaseDoctor) ask(query string, into ...any) error {
	return d.conn.QueryRow(d.ctx, query).Scan(into...)
}

func failed(check string, err error) finding {
	return finding{check, levelFail, err.Error(), "look into the database's log"}
}

func (d databaseDoctor) server() finding {
	var version int
	var standby, readOnly bool
	began := time.Now()
	if err := d.ask("SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool", &version, &standby, &readOnly); err != nil {
		return failed("database", err)
	}
	detail := fmt.Sprintf("Postgres %d.%d answers in %s", version/10000, version%10000, time.Since(began).Round(10*time.Microsecond))
	switch {
	case standby:
		return finding{"database", levelFail, detail + ", and is a standby", "connect to the primary: target_session_attrs=read-write in the address finds it"}
	case readOnly:
		return finding{"database", levelFail, detail + ", and is read-only", "set default_transaction_read_only to off, or connect to the primary"}
	case version < 150000:
		return finding{"database", levelWarn, detail, "loopd is tested with Postgres 15 and newer"}
	}
	return finding{Check: "database", Level: levelOK, Detail: detail}
}

// clock compares with the middle of the question, so that the way there does not count.
func (d databaseDoctor) clock() finding {
	var there time.Time
	began := time.Now()
	if err := d.ask("SELECT clock_timestamp()", &there); err != nil {
		return failed("clock", err)
	}
	took := time.Since(began)
	skew := there.Sub(began.Add(took / 2)).Round(time.Millisecond)
	detail := fmt.Sprintf("the database's is %s from this machine's", skew)
	if skew.Abs() > maxSkew+took {
		return finding{"clock", levelWarn, detail, "synchronise both with NTP: logs and traces have this machine's time, leases and budgets the database's"}
	}
	return finding{Check: "clock", Level: levelOK, Detail: detail}
}

func (d databaseDoctor) durability() finding {
	var fsync, commit, pages string
	if err := d.ask("SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')", &fsync, &commit, &pages); err != nil {
		return failed("durability", err)
	}
	detail := fmt.Sprintf("fsync %s, synchronous_commit %s, full_page_writes %s", fsync, commit, pages)
	if fsync != "on" || commit == "off" || pages != "on" {
		return finding{"durability", levelWarn, detail, "set all three to on: an acknowledged run may be lost with the machine otherwise"}
	}
	return finding{Check: "durability", Level: levelOK, Detail: detail}
}

// connections wants room for two replicas.
func (d databaseDoctor) connections() finding {
	const needed = 50
	var most, used int
	if err := d.ask("SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int", &most, &used); err != nil {
		return failed("connections", err)
	}
	detail := fmt.Sprintf("%d of %d are in use", used, most)
	if most-used < needed {
		return finding{"connections", levelWarn, detail, fmt.Sprintf("a replica takes up to 23: raise max_connections, or put PgBouncer in between, until %d are free", needed)}
	}
	return finding{Check: "connections", Level: levelOK, Detail: detail}
}

func (d databaseDoctor) schema(c config) finding {
	store, err := postgres.Open(d.ctx, postgres.Config{URL: c.databaseURL, DirectURL: c.directURL})
	if err != nil {
		return failed("schema", err)
	}
	defer store.Close()
	if err := store.Ready(d.ctx); errors.Is(err, postgres.ErrSchema) {
		return finding{"schema", levelFail, err.Error(), "run loopd migrate up"}
	} else if err != nil {
		return finding{"schema", levelFail, err.Error(), "see that LOOPD_DATABASE_URL, maybe through a pooler, can be connected to"}
	}
	have, err := store.SchemaVersion(d.ctx)
	if err != nil {
		return failed("schema", err)
	}
	return finding{Check: "schema", Level: levelOK, Detail: fmt.Sprintf("version %d", have)}
}

// listening sends itself a notification: a pooler in transaction mode loses it.
func (d databaseDoctor) listening(c config) finding {
	const check = "notifications"
	if _, err := d.conn.Exec(d.ctx, "LISTEN loopd_doctor"); err != nil {
		return failed(check, err)
	}
	other, err := pgx.Connect(d.ctx, c.databaseURL)
	if err != nil {
		return failed(check, err)
	}
	defer func() { _ = other.Close(d.ctx) }()
	if _, err := other.Exec(d.ctx, "NOTIFY loopd_doctor", pgx.QueryExecModeSimpleProtocol); err != nil {
		return failed(check, err)
	}
	waiting, cancel := context.WithTimeout(d.ctx, 2*time.Second)
	defer cancel()
	if _, err := d.conn.WaitForNotification(waiting); err != nil {
		return finding{check, levelWarn, "a notification did not arrive within 2s", "set LOOPD_DATABASE_DIRECT_URL to an address past the pooler; until then runs start up to a second late"}
	}
	return finding{Check: check, Level: levelOK, Detail: "they arrive"}
}

// checkProviders opens a connection to each provider, and asks nothing.
func checkProviders(ctx context.Context, c config) []finding {
	opened, err := openProviders(c)
	if err != nil {
		return []finding{{"providers", levelFail, err.Error(), "correct the member that is named"}}
	}
	if _, err := openPrices(c, opened.prices); err != nil {
		return []finding{{"prices", levelFail, err.Error(), "correct the --prices file"}}
	}
	if len(opened.models) == 0 {
		return []finding{{"providers", levelFail, "none is configured", "set LOOPD_ANTHROPIC_API_KEY, LOOPD_OPENAI_API_KEY or LOOPD_GEMINI_API_KEY, or write a --providers file"}}
	}
	configs := c.wellKnownProviders()
	if fromFile, err := readProviders(c.providers); err == nil {
		maps.Copy(configs, fromFile)
	}
	var found []finding
	for _, name := range slices.Sorted(maps.Keys(opened.models)) {
		base := cmp.Or(configs[name].BaseURL, usualAddress(configs[name].Kind))
		if base == "" { // scripted, or of a profile
			found = append(found, finding{Check: "provider " + name, Level: levelOK, Detail: "is configured"})
			continue
		}
		found = append(found, checkReach(ctx, "provider "+name, base, levelFail, "see whether this machine may connect to it (firewall, proxy, DNS); loopd provider test "+name+" asks it"))
	}
	return found
}

// usualAddress is where a kind of provider is, if its configuration does not say.
func usualAddress(kind string) string {
	return map[string]string{kindAnthropic: "https://api.anthropic.com", kindGemini: "https://generativelanguage.googleapis.com"}[kind]
}

// checkReach connects to a URL or a host:port.
func checkReach(ctx context.Context, check, address, level, fix string) finding {
	host := address
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		host = net.JoinHostPort(u.Hostname(), port)
	}
	began := time.Now()
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", host)
	if err != nil {
		return finding{check, level, err.Error(), fix}
	}
	_ = conn.Close()
	return finding{Check: check, Level: levelOK, Detail: fmt.Sprintf("%s connects in %s", host, time.Since(began).Round(100*time.Microsecond))}
}
