package main

import "testing"

// Time in rules is shortened, names of recorded series and thresholds are not.
func TestHasten(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"for: 5m": "for: 5s",
		"for: 1h": "for: 60s",
		"sum(rate(loopd_cost_usd_total[5m])) * 86400":                 "sum(rate(loopd_cost_usd_total[5s])) * 86400",
		"loopd:run_errors:ratio_1h > 0.2":                             "loopd:run_errors:ratio_1h > 0.2",
		"loopd:guard_stops:ratio_1h offset 1d":                        "loopd:guard_stops:ratio_1h offset 1440s",
		"max(loopd_queue_oldest_age_seconds) > 60":                    "max(loopd_queue_oldest_age_seconds) > 60",
		"sum(rate(loopd_run_duration_seconds_count[3d]))":             "sum(rate(loopd_run_duration_seconds_count[4320s]))",
		"histogram_quantile(0.99, sum by (le) (rate(x_bucket[30s])))": "histogram_quantile(0.99, sum by (le) (rate(x_bucket[1s])))",
	} {
		if got := hasten(rule); got != want {
			t.Errorf("hasten(%q) = %q, want %q", rule, got, want)
		}
	}
}

// What Grafana fills in is filled in, and names of series are read as it reads them.
func TestFill(t *testing.T) {
	t.Parallel()
	got := fill(`sum(rate(a{agent=~"$agent", tenant=~"$tenant"}[$__rate_interval])) + increase(b[$__range])`, 120*1e9)
	if want := `sum(rate(a{agent=~".*", tenant=~".*"}[10s])) + increase(b[120s])`; got != want {
		t.Errorf("fill: %s, want %s", got, want)
	}
	if got := legend("{{agent}} on {{model}}", map[string]string{"agent": "a", "model": "m"}); got != "a on m" {
		t.Errorf("legend: %q", got)
	}
}
