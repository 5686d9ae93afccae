package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// checkDashboards lives through a day and evaluates every panel.
func checkDashboards(ctx context.Context, w *world, s settings) error {
	if err := w.startWatch(ctx, s.deploy, false); err != nil {
		return err
	}
	from := time.Now()
	fmt.Printf("a day of %s begins\n", s.length)
	if err := w.live(ctx, s.length); err != nil {
		return err
	}
	pause(ctx, 3*time.Second) // the last scrape
	boards, err := filepath.Glob(filepath.Join(s.deploy, "grafana", "dashboards", "*.json"))
	if err != nil || len(boards) == 0 {
		return fmt.Errorf("there are no dashboards in %s: run make dashboards", s.deploy)
	}
	var all []shown
	var empty []string
	for _, path := range boards {
		title, panels, err := readBoard(path)
		if err != nil {
			return err
		}
		for _, p := range panels {
			full, lacks, err := w.watch.evaluate(ctx, p, from, time.Now())
			if err != nil {
				return fmt.Errorf("%s, %q: %w", title, p.Title, err)
			}
			full.Board = strings.TrimSuffix(filepath.Base(path), ".json")
			all = append(all, full)
			for _, l := range lacks {
				empty = append(empty, fmt.Sprintf("%s, %q: %s", title, p.Title, l))
			}
		}
	}
	if s.data != "" {
		text, err := json.Marshal(all)
		if err == nil {
			err = os.WriteFile(s.data, text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the data: %w", err)
		}
	}
	fmt.Printf("%d panels of %d dashboards\n", len(all), len(boards))
	if len(empty) > 0 {
		return fmt.Errorf("%d expressions have no data:\n  %s", len(empty), strings.Join(empty, "\n  "))
	}
	fmt.Println("every one has data")
	return nil
}

// evaluate asks for what a panel shows, all variables on "All". It reports the
// expressions without data, and those that are only their own "or vector(0)".
func (t *watch) evaluate(ctx context.Context, p panel, from, to time.Time) (shown, []string, error) {
	full := shown{Title: p.Title, Type: p.Type, Unit: p.FieldConfig.Defaults.Unit}
	var lacks []string
	for _, target := range p.Targets {
		expr := fill(target.Expr, to.Sub(from))
		found, err := t.ask(ctx, expr, from, to, 2*time.Second)
		if err != nil {
			return full, nil, err
		}
		points := 0
		for i, s := range found {
			points += len(s.Points)
			found[i].Labels = map[string]string{"": legend(target.Legend, s.Labels)}
		}
		if points == 0 {
			lacks = append(lacks, expr)
		}
		full.Series = append(full.Series, found...)
	}
	return full, lacks, nil
}

// fill does what Grafana does to an expression. Points lie 2 s apart.
func fill(expr string, length time.Duration) string {
	expr = regexp.MustCompile(`\$(namespace|agent|model|tenant|tool)\b`).ReplaceAllString(expr, ".*")
	return strings.NewReplacer("$__rate_interval", "10s", "$__range", fmt.Sprintf("%ds", int(length.Seconds()))).Replace(expr)
}

// legend is the name of a series.
func legend(format string, labels map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		format = strings.ReplaceAll(format, "{{"+name+"}}", labels[name])
	}
	return format
}

// panel is one of a dashboard's file, as far as it matters here.
type panel struct {
	Title   string `json:"title"`
	Type    string `json:"type"`
	Targets []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// shown is a panel with its data.
type shown struct {
	Board  string   `json:"board"`
	Title  string   `json:"title"`
	Type   string   `json:"type"`
	Unit   string   `json:"unit"`
	Series []series `json:"series"`
}

// readBoard reads a dashboard's file.
func readBoard(path string) (title string, panels []panel, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, fmt.Errorf("read a dashboard: %w", err)
	}
	var file struct {
		Title  string  `json:"title"`
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return "", nil, fmt.Errorf("read %s: %w", path, err)
	}
	return file.Title, file.Panels, nil
}
