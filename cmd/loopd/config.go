package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
)

// config is everything that a server can be told. Flags win over environment
// variables: --max-runs is LOOPD_MAX_RUNS. Secrets have no flag, because command
// lines are public; each can also come from a file named by NAME_FILE.
type config struct {
	databaseURL string
	directURL   string // for LISTEN and migrations, past a pooler
	httpAddr    string
	grpcAddr    string
	adminAddr   string

	maxRuns    int
	fairness   fairness
	maxGroup   int         // appends that share a commit; 0: as many as the store likes
	ceilings   loop.Limits // zero: loop.Ceilings()
	leaseTTL   time.Duration
	drainGrace time.Duration

	script      string   // file of scripted models
	scripted    []byte   // scripted models to have when there is no such file
	prices      string   // file that overrides the price book
	privateNets bool     // tools may be on private addresses
	toolHosts   []string // the only hosts that tools may be on; empty: any
	commands    bool     // MCP servers may be commands, for development

	retention string        // how long runs are kept, as people write it
	keep      time.Duration // the same; 0: for ever
	exportDir string        // where runs are exported before they are deleted; empty: they are not

	logFormat string
	logLevel  string
	otlp      string // OTLP/gRPC endpoint for traces; empty: none

	providers    string // file of providers
	anthropicURL string
	openaiURL    string

	tenants []string // whose own series metrics have

	getenv   func(string) string
	declared *pflag.FlagSet
	problems []error // found while the environment was read
}

// flags declares the flags with the environment's values as defaults.
func (c *config) flags(f *pflag.FlagSet, env Env) {
	c.getenv, c.declared = env.Getenv, f
	text := func(p *string, name, value, usage string) {
		if v := env.Getenv(envName(name)); v != "" {
			value = v
		}
		f.StringVar(p, name, value, usage+" ["+envName(name)+"]")
	}
	text(&c.databaseURL, "database-url", "", "Postgres to keep everything in")
	text(&c.directURL, "database-direct-url", "", "the same Postgres past a connection pooler, for LISTEN and migrations; default: the database URL")
	text(&c.httpAddr, "http-addr", "127.0.0.1:8080", "where to serve REST")
	text(&c.grpcAddr, "grpc-addr", "127.0.0.1:8081", "where to serve gRPC")
	text(&c.adminAddr, "admin-addr", "127.0.0.1:8082", "where to serve /metrics, /healthz, /readyz and pprof")
	text(&c.providers, "providers", "", "YAML file of model providers")
	text(&c.script, "script", "", "YAML file of scripted models, as provider \"scripted\"")
	text(&c.prices, "prices", "", "JSON file whose rows override the bundled price book")
	text(&c.retention, "retention", forever, "how long runs are kept after they ended, such as 90d, where their agent says nothing else; at least 1h")
	text(&c.exportDir, "retention-export-dir", "", "directory to which each run is exported before it is deleted; default: none is")
	text(&c.logFormat, "log-format", "json", "json or text")
	text(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	text(&c.otlp, "otlp-endpoint", "", "OTLP gRPC endpoint for traces, host:port")
	text(&c.anthropicURL, "anthropic-base-url", "https://api.anthropic.com", "base URL of provider \"anthropic\"")
	text(&c.openaiURL, "openai-base-url", "https://api.openai.com/v1", "base URL of provider \"openai\", or of a compatible server")
	f.IntVar(&c.maxRuns, "max-runs", 256, "runs that this worker drives at once [LOOPD_MAX_RUNS]")
	c.fairness.flags(f)
	f.DurationVar(&c.leaseTTL, "lease-ttl", 15*time.Second, "how long others leave a silent worker's runs alone [LOOPD_LEASE_TTL]")
	f.DurationVar(&c.drainGrace, "drain-grace", 20*time.Second, "how long calls in flight may go on after SIGTERM [LOOPD_DRAIN_GRACE]")
	f.BoolVar(&c.privateNets, "allow-private-tools", false, "let tools be on loopback and private addresses [LOOPD_ALLOW_PRIVATE_TOOLS]")
	f.StringSliceVar(&c.toolHosts, "tool-hosts", listOf(env.Getenv("LOOPD_TOOL_HOSTS")), "the only hosts that tools may be on, such as shop.example,*.corp.example:8443; default: any [LOOPD_TOOL_HOSTS]")
	f.StringSliceVar(&c.tenants, "metric-tenants", listOf(env.Getenv("LOOPD_METRIC_TENANTS")), "tenants that have series of their own in metrics, at most 100; the others are shown together [LOOPD_METRIC_TENANTS]")
	for _, name := range slices.Concat(fairnessFlags(), []string{"max-runs", "lease-ttl", "drain-grace", "allow-private-tools"}) {
		v := env.Getenv(envName(name))
		if v == "" {
			continue
		}
		if err := f.Set(name, v); err != nil {
			c.problems = append(c.problems, fmt.Errorf("%s: %w", envName(name), err))
		}
	}
}

// listOf splits a list at its commas.
func listOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return "LOOPD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// complete checks the whole, naming every problem.
func (c *config) complete() error {
	errs := slices.Clone(c.problems)
	if c.logFormat != "json" && c.logFormat != "text" {
		errs = append(errs, fmt.Errorf("--log-format is %q: use json or text", c.logFormat))
	}
	if c.maxRuns < 1 {
		errs = append(errs, fmt.Errorf("--max-runs is %d: use at least 1", c.maxRuns))
	}
	errs = append(errs, c.fairness.faults()...)
	if len(c.tenants) > label.MaxTenants {
		errs = append(errs, fmt.Errorf("--metric-tenants names %d tenants: use at most %d", len(c.tenants), label.MaxTenants))
	}
	if c.leaseTTL < time.Second {
		errs = append(errs, fmt.Errorf("--lease-ttl is %s: use at least 1s, or a short pause looks like a death", c.leaseTTL))
	}
	keep, err := keepOf(c.retention)
	if err != nil {
		errs = append(errs, fmt.Errorf("--retention %s: %w", c.retention, err))
	}
	c.keep = keep
	if err := errors.Join(errs...); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	return nil
}

// hash tells two configurations apart, in metrics. What flags and files say is in it;
// addresses of databases are not, since they may hold passwords.
func (c *config) hash() string {
	h := sha256.New()
	c.declared.VisitAll(func(f *pflag.Flag) {
		if !strings.HasPrefix(f.Name, "database-") {
			fmt.Fprintf(h, "%s=%s\n", f.Name, f.Value)
		}
	})
	for _, path := range []string{c.providers, c.script, c.prices} {
		if b, err := os.ReadFile(path); err == nil { //nolint:gosec // the operator names the file
			h.Write(b)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// readSecret takes a secret from NAME, or from the file that NAME_FILE names.
func readSecret(getenv func(string) string, name string) (string, error) {
	if v := getenv(name); v != "" {
		return v, nil
	}
	path := getenv(name + "_FILE")
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", fmt.Errorf("read %s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}
