package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

// metricsDocument lists every metric. Alerts and dashboards are checked against it, so
// that a metric cannot be renamed under them.
const metricsDocument = "../../deploy/prometheus/METRICS.md"

const metricsHead = `# Metrics of loopd

Written by ` + "`go test ./cmd/loopd -run TestMetricsDocument -update`" + ` from what a daemon registers; those of the Go
runtime and of the process, ` + "`go_*` and `process_*`" + `, are not in it. Histograms have classic buckets (` + "`_bucket`, `_sum`, `_count`" + `)
and, for a Prometheus that asks for them, native ones.

| metric | labels | what it says |
|---|---|---|
`

// describedMetric is how a descriptor prints itself; it has no other way to be read.
var describedMetric = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: (".*"), unit: "[^"]*", constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}\}$`)

// The document says what a daemon registers.
func TestMetricsDocument(t *testing.T) {
	t.Parallel()
	env := Env{Getenv: func(string) string { return "" }, Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader("")}
	c := config{}
	c.flags(pflag.NewFlagSet("serve", pflag.ContinueOnError), env)
	c.databaseURL, c.httpAddr, c.grpcAddr, c.adminAddr = pgURL(t), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	d, err := newDaemon(t.Context(), c, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.store.Close()
		for _, lis := range []io.Closer{d.httpLis, d.grpcLis, d.adminLis} {
			_ = lis.Close()
		}
	})
	got := metricsHead + strings.Join(metricRows(t, d.registry), "")
	if *update {
		if err := os.WriteFile(metricsDocument, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricsDocument)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is old: run this test with -update, then make dashboards-test (-document +daemon):\n%s", metricsDocument, diff)
	}
}

// metricRows has one row for each metric of loopd's own and of its middleware.
func metricRows(t *testing.T, registry *prometheus.Registry) []string {
	t.Helper()
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		registry.Describe(described)
	}()
	var rows []string
	for desc := range described {
		part := describedMetric.FindStringSubmatch(desc.String())
		if part == nil {
			t.Errorf("a descriptor is written otherwise than this test knows: %s", desc)
			continue
		}
		name, labels := part[1], strings.Split(part[3], ",")
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		var help string
		if _, err := fmt.Sscanf(part[2], "%q", &help); err != nil {
			t.Errorf("%s: read its help: %v", name, err)
		}
		slices.Sort(labels)
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, cmp.Or(strings.Join(labels, ", "), "-"), help))
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}
