package loop_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

func TestLimitsValidate(t *testing.T) {
	t.Parallel()
	ceiling := loop.Ceilings()
	for _, l := range []loop.Limits{loop.Defaults(), ceiling} {
		for _, err := range l.Validate(ceiling) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for field, c := range map[string]struct{ low, high func(*loop.Limits) }{
		"max_iterations":                 {func(l *loop.Limits) { l.Iterations = 0 }, func(l *loop.Limits) { l.Iterations = 21 }},
		"max_model_calls":                {func(l *loop.Limits) { l.ModelCalls = 0 }, func(l *loop.Limits) { l.ModelCalls = 61 }},
		"max_total_tokens":               {func(l *loop.Limits) { l.TotalTokens = 0 }, func(l *loop.Limits) { l.TotalTokens = 1e8 }},
		"max_output_tokens":              {func(l *loop.Limits) { l.OutputTokens = -1 }, func(l *loop.Limits) { l.OutputTokens = 1e8 }},
		"max_tool_calls":                 {func(l *loop.Limits) { l.ToolCalls = -1 }, func(l *loop.Limits) { l.ToolCalls = 501 }},
		"max_tool_calls_per_answer":      {func(l *loop.Limits) { l.CallsPerAnswer = 0 }, func(l *loop.Limits) { l.CallsPerAnswer = 65 }},
		"max_parallel_tool_calls":        {func(l *loop.Limits) { l.ParallelCalls = 0 }, func(l *loop.Limits) { l.ParallelCalls = 17 }},
		"max_identical_iterations":       {func(l *loop.Limits) { l.IdenticalIters = 1 }, func(l *loop.Limits) { l.IdenticalIters = 11 }},
		"max_error_iterations":           {func(l *loop.Limits) { l.ErrorIters = 0 }, func(l *loop.Limits) { l.ErrorIters = 11 }},
		"max_invalid_iterations":         {func(l *loop.Limits) { l.InvalidIters = 0 }, func(l *loop.Limits) { l.InvalidIters = 11 }},
		"max_same_call_iterations":       {func(l *loop.Limits) { l.SameCallIters = 1 }, func(l *loop.Limits) { l.SameCallIters = 21 }},
		"max_cycles":                     {func(l *loop.Limits) { l.Cycles = 1 }, func(l *loop.Limits) { l.Cycles = 11 }},
		"max_frequent_repeats":           {func(l *loop.Limits) { l.FrequentRepeats = 1 }, func(l *loop.Limits) { l.FrequentRepeats = 11 }},
		"max_near_duplicates":            {func(l *loop.Limits) { l.NearDuplicates = 1 }, func(l *loop.Limits) { l.NearDuplicates = 13 }},
		"max_iterations_without_novelty": {func(l *loop.Limits) { l.NoveltyIters = 1 }, func(l *loop.Limits) { l.NoveltyIters = 51 }},
		"max_call_failures":              {func(l *loop.Limits) { l.CallFailures = 0 }, func(l *loop.Limits) { l.CallFailures = 11 }},
		"max_tool_failures":              {func(l *loop.Limits) { l.ToolFailures = 0 }, func(l *loop.Limits) { l.ToolFailures = 21 }},
		"max_monologue_answers":          {func(l *loop.Limits) { l.Monologue = 1 }, func(l *loop.Limits) { l.Monologue = 11 }},
		"final_answer_max_output_tokens": {func(l *loop.Limits) { l.FinalOutput = 15 }, func(l *loop.Limits) { l.FinalOutput = 1e6 }},
		"answer_max_output_tokens":       {func(l *loop.Limits) { l.AnswerOutput = 15 }, func(l *loop.Limits) { l.AnswerOutput = 1e6 }},
		"max_reasks":                     {func(l *loop.Limits) { l.Reasks = -1 }, func(l *loop.Limits) { l.Reasks = 6 }},
		"max_cost_usd":                   {func(l *loop.Limits) { l.Cost = -1 }, func(l *loop.Limits) { l.Cost = ceiling.Cost + 1 }},
		"deadline":                       {func(l *loop.Limits) { l.Deadline = time.Second - 1 }, func(l *loop.Limits) { l.Deadline = 25 * time.Hour }},
		"max_wall_time":                  {func(l *loop.Limits) { l.WallTime = 0 }, func(l *loop.Limits) { l.WallTime = ceiling.WallTime + 1 }},
		"context_compact_at":             {func(l *loop.Limits) { l.CompactAt = 0 }, func(l *loop.Limits) { l.CompactAt = 0.96 }},
		"max_compactions":                {func(l *loop.Limits) { l.Compactions = -1 }, func(l *loop.Limits) { l.Compactions = 11 }},
		"context_stop_at":                {func(l *loop.Limits) { l.StopAt = 0 }, func(l *loop.Limits) { l.StopAt = 0.96 }},
	} {
		for _, spoil := range []func(*loop.Limits){c.low, c.high} {
			l := loop.Defaults()
			spoil(&l)
			errs := l.Validate(ceiling)
			if len(errs) != 1 || errs[0].Field != field || !strings.HasPrefix(errs[0].Error(), field+": ") {
				t.Errorf("%s: errors %v", field, errs)
			}
		}
		l := loop.Defaults()
		c.high(&l)
		if errs := l.Validate(ceiling); len(errs) == 1 && !errs[0].Above {
			t.Errorf("%s above the ceiling is not told apart from nonsense", field)
		}
	}
	everything := loop.Limits{Cost: -1}
	if got := len(everything.Validate(ceiling)); got != 24 { // tool calls, re-asks and compactions may be zero
		t.Errorf("%d faults reported at once, want 24", got)
	}
}

// TestEveryLimitIsRead: a limit that nothing reads stops nothing (google/adk-go 1287).
func TestEveryLimitIsRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "limits.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[loop.Limits]()) {
		if !strings.Contains(source.String(), "l."+field.Name) && !strings.Contains(source.String(), "imits."+field.Name) {
			t.Errorf("nothing reads the limit %s", field.Name)
		}
	}
}
