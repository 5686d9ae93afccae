package main

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// QueryUsage gives the page that the token names by its number.
func (f *fakeServer) QueryUsage(_ context.Context, req *loopdv1.QueryUsageRequest) (*loopdv1.QueryUsageResponse, error) {
	return f.usage[len(req.GetPageToken())], f.got(req)
}

// figuresOf are the figures of a group.
func figuresOf(runs, succeeded int64, cost, wasted string, share float64, perSuccess string) *loopdv1.UsageFigures {
	return &loopdv1.UsageFigures{
		Runs: runs, SucceededRuns: succeeded, ModelCalls: 11 * runs, ToolCalls: 8 * runs, ToolFailures: runs / 2,
		Usage: &loopdv1.Usage{
			InputUncachedTokens: 900 * runs, CacheReadTokens: 52_000 * runs, CacheWriteTokens: 100 * runs, OutputTokens: 1200 * runs, ReasoningTokens: 30 * runs,
		},
		CostUsd: cost, WastedUsd: wasted, WastedShare: share, CacheSavingsUsd: "-0.00003", CostPerSucceededRunUsd: perSuccess, CostEstimatedUsd: "0",
	}
}

// weekOfUsage has two pages.
func weekOfUsage() []*loopdv1.QueryUsageResponse {
	total := figuresOf(1240, 1239, "61.482100000003", "2.5", 0.0406, "0.049622356739")
	total.CostEstimatedUsd = "0.00000002"
	page := func(next string, rows ...*loopdv1.UsageRow) *loopdv1.QueryUsageResponse {
		return &loopdv1.QueryUsageResponse{
			Rows: rows, Total: total, NextPageToken: next, TimeZone: "UTC",
			StartTime: timestamppb.New(noon.Add(-7 * 24 * time.Hour)), EndTime: timestamppb.New(noon),
		}
	}
	row := func(agent, team string, f *loopdv1.UsageFigures) *loopdv1.UsageRow {
		return &loopdv1.UsageRow{Group: map[string]string{"agent": agent, "label:team": team}, Figures: f}
	}
	return []*loopdv1.QueryUsageResponse{
		page("2", row("agents/researcher", "care", figuresOf(1239, 1239, "58.982100000003", "0", 0, "0.047604600486"))),
		page("", row("agents/s", "", figuresOf(1, 0, "2.5", "2.5", 1, "")), row("agents/s", "naïve\x1b[31m\tteam", figuresOf(0, 0, "0.000000000007", "0", 0, ""))),
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.usage = weekOfUsage()
	term.wantCode(t, 0, term.loopd("usage", "--since", "7d", "--by", "agent,label:team", "--label", "tier=1=a", "--agent", "s", "--state", "failed,STOPPED"))
	term.wantRequest(t, &loopdv1.QueryUsageRequest{
		StartTime: timestamppb.New(term.client.now().Add(-7 * 24 * time.Hour)), TimeZone: "UTC", GroupBy: []string{"agent", "label:team"},
		Agent: "agents/s", Labels: map[string]string{"tier": "1=a"}, PageSize: pageSize, PageToken: "2",
		States: []loopdv1.RunState{loopdv1.RunState_RUN_STATE_FAILED, loopdv1.RunState_RUN_STATE_STOPPED},
	})
	golden(t, "usage.txt", term.stdout.String())

	term.wantCode(t, 0, term.loopd("usage", "--by", "agent,label:team", "-o", "json"))
	var all struct {
		Rows []struct {
			Group map[string]string
		}
		NextPageToken string
	}
	if err := json.Unmarshal(term.stdout.Bytes(), &all); err != nil || len(all.Rows) != 3 || all.NextPageToken != "" || all.Rows[2].Group["agent"] != "agents/s" {
		t.Errorf("all pages as JSON are %+v, %v", all, err)
	}

	term.server.usage[0].Rows, term.server.usage[0].NextPageToken = nil, ""
	term.wantCode(t, 0, term.loopd("usage"))
	golden(t, "usage_total.txt", term.stdout.String())
}

func TestUsageTimes(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.usage = []*loopdv1.QueryUsageResponse{{}}
	for text, want := range map[string]time.Time{
		"90m":                  term.client.now().Add(-90 * time.Minute),
		"2w":                   term.client.now().Add(-14 * 24 * time.Hour),
		"2026-03-29":           time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC),
		"2026-03-29T10:00:00Z": time.Date(2026, 3, 29, 10, 0, 0, 0, time.UTC),
	} {
		term.wantCode(t, 0, term.loopd("usage", "--until", text, "--time-zone", "Europe/Berlin", "--sort", "time", "--by", "day"))
		term.wantRequest(t, &loopdv1.QueryUsageRequest{
			StartTime: timestamppb.New(term.client.now().Add(-24 * time.Hour)), EndTime: timestamppb.New(want), TimeZone: "Europe/Berlin",
			GroupBy: []string{"day"}, OrderBy: "time", PageSize: pageSize,
		})
	}
	for _, args := range [][]string{
		{"--since", "yesterday"}, {"--since", "-1h"}, {"--until", "9999999d"}, {"--time-zone", "Berlin"}, {"--sort", "name"}, {"--label", "team"},
		{"--state", "UNSPECIFIED"}, {"agents/s"},
	} {
		term.wantCode(t, exitUsage, term.loopd(append([]string{"usage"}, args...)...))
	}
}
