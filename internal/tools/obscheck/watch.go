package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// watch is Prometheus and Alertmanager, with loopd's own rules.
type watch struct {
	w                        *world
	prometheus, alertmanager process
	promURL, amURL           string
}

// faster is by how much time is shortened in the rules when alerts are tried.
const faster = 60

// duration is one in a rule: after "for: ", in brackets, or after "offset ".
var duration = regexp.MustCompile(`(for: |\[|offset )(\d+)([smhd])`)

// hasten divides all durations of a rule file, those in the names of recorded series
// not.
func hasten(rules string) string {
	units := map[string]int{"s": 1, "m": 60, "h": 3600, "d": 86400}
	return duration.ReplaceAllStringFunc(rules, func(text string) string {
		part := duration.FindStringSubmatch(text)
		n, err := strconv.Atoi(part[2])
		if err != nil {
			return text
		}
		return part[1] + strconv.Itoa(max(1, n*units[part[3]]/faster)) + "s"
	})
}

const promConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules/recording.yml, rules/alerts.yml]
alerting:
  alertmanagers: [{static_configs: [{targets: ["%s"]}]}]
scrape_configs:
  - job_name: loopd
    static_configs: [{targets: [%s]}]
  - job_name: played
    static_configs: [{targets: ["%s"]}]
`

// amConfig tells nobody, at once.
const amConfig = `
route: {receiver: nobody, group_by: ["..."], group_wait: 0s, group_interval: 1s}
receivers: [{name: nobody}]
`

// startWatch starts both. hurried: with the time in the rules shortened.
func (w *world) startWatch(ctx context.Context, deploy string, hurried bool) error {
	t := &watch{w: w}
	w.watch = t
	if err := os.MkdirAll(w.file("rules"), 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	for _, name := range []string{"recording.yml", "alerts.yml"} {
		text, err := os.ReadFile(filepath.Join(deploy, "prometheus", name))
		if err != nil {
			return fmt.Errorf("read the rules: %w", err)
		}
		rules := string(text)
		if hurried {
			rules = hasten(rules)
		}
		if err := os.WriteFile(w.file("rules/"+name), []byte(rules), 0o600); err != nil {
			return fmt.Errorf("write the rules: %w", err)
		}
	}
	prom, err := freePort(ctx)
	if err != nil {
		return err
	}
	am, err := freePort(ctx)
	if err != nil {
		return err
	}
	t.promURL, t.amURL = "http://"+prom, "http://"+am
	var targets []string
	for _, r := range w.replicas {
		targets = append(targets, strconv.Quote(r.admin))
	}
	config := fmt.Sprintf(promConfig, am, strings.Join(targets, ", "), w.extra.addr)
	if err := errors.Join(os.WriteFile(w.file("prometheus.yml"), []byte(config), 0o600), os.WriteFile(w.file("alertmanager.yml"), []byte(amConfig), 0o600)); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := errors.Join(
		t.prometheus.start(w.file("prometheus.log"), "prometheus", "--config.file="+w.file("prometheus.yml"), "--storage.tsdb.path="+w.file("tsdb"),
			"--web.listen-address="+prom, "--enable-feature=exemplar-storage", "--query.lookback-delta=10s", "--log.level=warn"),
		t.alertmanager.start(w.file("alertmanager.log"), "prometheus-alertmanager", "--config.file="+w.file("alertmanager.yml"), "--storage.path="+w.file("am"),
			"--web.listen-address="+am, "--cluster.listen-address=", "--log.level=warn"),
	); err != nil {
		return err
	}
	return until(ctx, "Prometheus and Alertmanager are ready", time.Minute, func() bool {
		return answers(ctx, t.promURL+"/-/ready") && answers(ctx, t.amURL+"/-/ready")
	})
}

func (t *watch) close() {
	t.prometheus.kill()
	t.alertmanager.kill()
}

// series is what an expression returned for one set of labels. A point is Unix seconds
// and the value, which is text since JSON has no number that is not one.
type series struct {
	Labels map[string]string `json:"labels"`
	Points [][2]any          `json:"points"`
}

// ask evaluates an expression over a time, in points of some seconds.
func (t *watch) ask(ctx context.Context, expr string, from, to time.Time, every time.Duration) ([]series, error) {
	form := url.Values{
		"query": {expr}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}, "step": {every.String()},
	}
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := get(ctx, t.promURL+"/api/v1/query_range?"+form.Encode(), &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	var all []series
	for _, r := range answer.Data.Result {
		all = append(all, series{r.Metric, r.Values})
	}
	return all, nil
}

// alerts are those that Alertmanager has now: name and severity.
func (t *watch) alerts(ctx context.Context) (map[string]bool, error) {
	var answer []struct{ Labels map[string]string }
	if err := get(ctx, t.amURL+"/api/v2/alerts", &answer); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, a := range answer {
		seen[a.Labels["alertname"]+" "+a.Labels["severity"]] = true
	}
	return seen, nil
}

// get reads JSON; what Prometheus has to say against a query is JSON too.
func get(ctx context.Context, at string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", req.URL.Host, err)
	}
	return nil
}
