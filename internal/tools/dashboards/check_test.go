package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const deploy = "../../../deploy/"

// known is what there is to ask for: labels by metric.
type known map[string][]string

// others are metrics that are not loopd's: of Prometheus, and of the Go runtime and the
// process, which are as they are in every Go program.
func others() known {
	return known{
		"up": {}, "ALERTS": {"alertname", "alertstate", "severity"},
		"go_goroutines": {}, "process_resident_memory_bytes": {}, "process_cpu_seconds_total": {},
	}
}

// everywhere are labels that a scrape adds.
func everywhere() []string { return []string{"instance", "job", "namespace"} }

// documented reads the list of metrics that loopd's own test keeps true.
func documented(t *testing.T) known {
	t.Helper()
	text, err := os.ReadFile(deploy + "prometheus/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	found := others()
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		found[row[1]] = strings.FieldsFunc(row[2], func(r rune) bool { return r == ',' || r == ' ' || r == '-' })
	}
	if len(found) < 60 {
		t.Fatalf("METRICS.md lists only %d metrics: is it read rightly?", len(found))
	}
	return found
}

// labelsOf finds a metric, also as a part of a histogram.
func (k known) labelsOf(name string) ([]string, bool) {
	if labels, ok := k[name]; ok {
		return labels, true
	}
	for _, part := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, part); ok && !strings.HasSuffix(base, "_total") {
			labels, ok := k[base]
			if part == "_bucket" {
				labels = append(slices.Clone(labels), "le")
			}
			return labels, ok
		}
	}
	return nil, false
}

// problems are names in an expression that nothing has.
func (k known) problems(text string) []string {
	node, err := parser.NewParser(parser.Options{}).ParseExpr(fill(text))
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	has := map[string]bool{} // labels of all metrics of the expression
	parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
		selector, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		labels, ok := k.labelsOf(selector.Name)
		if !ok {
			found = append(found, "there is no metric "+selector.Name)
			return nil
		}
		labels = append(slices.Clone(labels), everywhere()...)
		for _, l := range labels {
			has[l] = true
		}
		for _, m := range selector.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(labels, m.Name) {
				found = append(found, selector.Name+" has no label "+m.Name)
			}
		}
		return nil
	})
	parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !has[l] {
					found = append(found, "no metric in it has the label "+l)
				}
			}
		}
		return nil
	})
	return found
}

// fill puts something in place of what Grafana fills in outside of strings.
func fill(expr string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(expr)
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

func readRules(t *testing.T, name string) ruleFile {
	t.Helper()
	text, err := os.ReadFile(deploy + "prometheus/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var f ruleFile
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// recorded adds what rules record, with the labels that they keep.
func recorded(t *testing.T, k known) known {
	t.Helper()
	for _, g := range readRules(t, "recording.yml").Groups {
		for _, r := range g.Rules {
			by := regexp.MustCompile(`^sum by \(([^)]*)\)`).FindStringSubmatch(r.Expr)
			k[r.Record] = nil
			if by != nil {
				k[r.Record] = strings.Split(strings.ReplaceAll(by[1], " ", ""), ",")
			}
		}
	}
	return k
}

// Rules ask only for what loopd has, and alerts say what to do.
func TestRules(t *testing.T) {
	t.Parallel()
	k := recorded(t, documented(t))
	boardIDs := map[string]bool{}
	for _, b := range boards() {
		boardIDs["/d/loopd-"+b.id] = true
	}
	tests, err := os.ReadFile(deploy + "prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	slow, err := os.ReadFile(deploy + "prometheus/alerts_slow_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"recording.yml", "alerts.yml"} {
		for _, g := range readRules(t, file).Groups {
			for _, r := range g.Rules {
				for _, p := range k.problems(r.Expr) {
					t.Errorf("%s: %s%s: %s", file, r.Record, r.Alert, p)
				}
				if r.Alert == "" {
					continue
				}
				if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) {
					t.Errorf("%s: severity is %q, want page or ticket", r.Alert, r.Labels["severity"])
				}
				if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
					t.Errorf("%s does not say what it means and what to do first", r.Alert)
				}
				if !boardIDs[r.Annotations["dashboard"]] {
					t.Errorf("%s leads to a dashboard %q that is not there", r.Alert, r.Annotations["dashboard"])
				}
				page := filepath.Base(r.Annotations["runbook_url"])
				if _, err := os.Stat(deploy + "prometheus/runbooks/" + page); err != nil || page != r.Alert+".md" {
					t.Errorf("%s has no runbook: %s, %v", r.Alert, page, err)
				}
				if all := string(tests) + string(slow); strings.Count(all, `alertname="`+r.Alert+`"`) < 2 {
					t.Errorf("%s needs a test at which it fires and one at which it does not", r.Alert)
				}
			}
		}
	}
}

// The files in deploy are those that the code makes, and ask only for what loopd has.
func TestDashboards(t *testing.T) {
	t.Parallel()
	k := recorded(t, documented(t))
	for _, b := range boards() {
		want, err := encode(b)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(deploy + "grafana/dashboards/" + b.id + ".json")
		if err != nil || string(got) != string(want) {
			t.Errorf("%s.json is old: run make dashboards (%v)", b.id, err)
		}
		for _, expr := range expressions(t, want) {
			for _, p := range k.problems(expr) {
				t.Errorf("%s: %s: %s", b.id, expr, p)
			}
		}
		titles := map[string]bool{}
		for _, p := range b.panels {
			if titles[p.title] || p.about == "" {
				t.Errorf("%s: panel %q is there twice, or does not say what it shows", b.id, p.title)
			}
			titles[p.title] = true
		}
	}
}

// expressions finds all in a dashboard, those of annotations too.
func expressions(t *testing.T, text []byte) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	var found []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if expr, ok := v["expr"].(string); ok {
				found = append(found, expr)
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(v[key])
			}
		case []any:
			for _, member := range v {
				walk(member)
			}
		}
	}
	walk(v)
	return found
}

// Every metric of loopd is on a dashboard or in a rule: what nobody looks at need not
// be counted.
func TestEveryMetricIsLookedAt(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, pattern := range []string{"grafana/dashboards/*.json", "prometheus/*.yml"} {
		files, err := filepath.Glob(deploy + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	for name := range documented(t) {
		if strings.HasPrefix(name, "loopd_") && !strings.Contains(all.String(), name) {
			t.Errorf("nothing looks at %s", name)
		}
	}
}

// A name that is not there is seen.
func TestProblems(t *testing.T) {
	t.Parallel()
	k := known{"a_seconds": {"x"}, "b_total": {"y"}}
	for expr, want := range map[string]string{
		`rate(b_total{y="1", namespace="n"}[$__rate_interval])`:                "",
		`histogram_quantile(0.9, sum by (le, x) (rate(a_seconds_bucket[5m])))`: "",
		`rate(c_total[5m])`:             "there is no metric c_total",
		`b_total_count`:                 "there is no metric b_total_count",
		`b_total{z="1"}`:                "b_total has no label z",
		`sum by (z) (b_total)`:          "no metric in it has the label z",
		`sum by (le) (a_seconds_count)`: "no metric in it has the label le",
		`sum(`:                          "parse error",
	} {
		got := strings.Join(k.problems(expr), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
