package main

import (
	"fmt"
	"strings"
)

// board is one dashboard.
type board struct {
	id, title, about string
	panels           []panel
}

// kind is how a panel shows its data.
type kind int

const (
	graph kind = iota // lines over time
	stack             // lines that add up
	stat              // one number for each series
	heat              // a histogram over time
	rows              // a table of what is now
)

// panel is one question and its answer.
type panel struct {
	title, about string
	kind         kind
	unit         string // of Grafana
	width        uint32 // of 24; 0: 8
	queries      []query
	runs         string // states of the runs behind it, for the link that lists them
}

// query is one expression. In legend, {{agent}} stands for a label.
type query struct {
	expr, legend string
	exemplars    bool // its points lead to runs and traces
}

// boards are the dashboards, in the order in which somebody on call opens them.
func boards() []board {
	return []board{overview(), cost(), guards(), providers(), approvals(), runtime()}
}

// in selects what the variables of the dashboard say: always the namespace, and those
// labels of a metric whose names are given. More matchers may follow.
func in(metric string, variables string, matchers ...string) string {
	all := []string{`namespace=~"$namespace"`}
	for _, v := range strings.Fields(variables) {
		all = append(all, fmt.Sprintf(`%s=~"$%s"`, v, v))
	}
	return "loopd_" + metric + "{" + strings.Join(append(all, matchers...), ", ") + "}"
}

// rate is how much a counter grows in a second, summed by labels; "" sums all.
func rate(by, selector string) string {
	return sumBy(by) + "(rate(" + selector + "[$__rate_interval]))"
}

// total is by how much a counter grew over what the dashboard shows. A series that was
// not there at its beginning began with its first event, which no increase shows, so
// that its value is what it grew by.
func total(by, selector string) string {
	return sumBy(by) + "((" + selector + " unless " + selector + " offset $__range) or increase(" + selector + "[$__range]))"
}

// orZero is 0 if there is nothing at all.
const orZero = " or on () vector(0)"

func sumBy(by string) string {
	if by == "" {
		return "sum"
	}
	return "sum by (" + by + ") "
}

// share divides what it may, and has no value where the whole is nothing.
func share(part, whole string) string { return part + " / (" + whole + " > 0)" }

// quantile is one of a histogram with classic buckets. They are what every version of
// Prometheus has, Debian's too, without a flag; a Prometheus that scrapes native
// histograms keeps them with always_scrape_classic_histograms.
func quantile(q, by, selector string) string {
	labels := "le"
	if by != "" {
		labels += ", " + by
	}
	return "histogram_quantile(" + q + ", " + rate(labels, bucket(selector)) + ")"
}

// buckets is a histogram for a heat map.
func buckets(selector string) string { return rate("le", bucket(selector)) }

func bucket(selector string) string { return strings.Replace(selector, "{", "_bucket{", 1) }

func count(selector string) string { return strings.Replace(selector, "{", "_count{", 1) }

// quantiles are the three that are usually asked for.
func quantiles(selector string) []query {
	return []query{
		{quantile("0.5", "", selector), "p50", true}, {quantile("0.95", "", selector), "p95", true}, {quantile("0.99", "", selector), "p99", true},
	}
}

func one(expr, legend string) []query { return []query{{expr: expr, legend: legend}} }
