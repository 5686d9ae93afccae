package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// traits are what the models of one generation accept. Anything else is a 400.
type traits struct {
	models   []string
	adaptive bool   // thinking {"type":"adaptive"}: the model decides how much
	budget   bool   // thinking {"type":"enabled","budget_tokens":n}
	off      string // the thinking type that turns it off; "" = it cannot be
	effort   string // the highest output_config.effort that loopd asks for; "" = none is accepted
	sampling bool   // accepts a temperature while it does not think
}

// generations is Anthropic's table of thinking support, with its pages on effort
// and on migrating to each model, as of October 2026.
var generations = []traits{
	{
		models: []string{
			"claude-fable-5", "claude-fable-5-1", "claude-fable-5-2",
			"claude-mythos-5", "claude-mythos-5-1", "claude-mythos-5-2", "claude-opus-5-5",
		},
		adaptive: true, effort: "xhigh",
	},
	{models: []string{"claude-mythos-preview"}, adaptive: true, budget: true, effort: "high"},
	{models: []string{"claude-sonnet-5-5"}, adaptive: true, off: "between_tools", effort: "xhigh"},
	{
		models: []string{
			"claude-opus-5", "claude-sonnet-5", "claude-haiku-5-5",
			"claude-opus-4-8", "claude-opus-4-7",
		},
		adaptive: true, off: thinkingOff, effort: "xhigh",
	},
	{
		models:   []string{"claude-opus-4-6", "claude-sonnet-4-6"},
		adaptive: true, budget: true, off: thinkingOff, effort: "high", sampling: true,
	},
	{models: []string{"claude-opus-4-5"}, budget: true, off: thinkingOff, effort: "high", sampling: true},
	{
		models: []string{
			"claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-1", "claude-opus-4", "claude-opus-4-0",
			"claude-sonnet-4", "claude-sonnet-4-0", "claude-3-7-sonnet",
		},
		budget: true, off: thinkingOff, sampling: true,
	},
	{
		models: []string{
			"claude-3-5-sonnet", "claude-3-5-haiku", "claude-3-opus", "claude-3-sonnet", "claude-3-haiku",
		},
		sampling: true,
	},
}

// traitsOf finds the model's row. A Claude that is not in the table is taken for
// one of the newest, and another vendor's model behind this API for one that is
// steered by a number: the servers that imitate the API accept it or ignore it.
func traitsOf(model string) traits {
	name := canonical(model)
	for _, t := range generations {
		if slices.Contains(t.models, name) {
			return t
		}
	}
	if strings.HasPrefix(name, "claude-") {
		return generations[0]
	}
	return traits{budget: true, off: thinkingOff, sampling: true}
}

// suffix is what platforms and snapshots append to a model's name.
var suffix = regexp.MustCompile(`(@.*|-v\d+(:\d+)?|-latest|-\d{8})$`)

// canonical is the name that the table holds, whatever the platform makes of it:
// "us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5@20251101".
func canonical(model string) string {
	name := strings.ToLower(model)
	if at := strings.LastIndex(name, "claude-"); at >= 0 {
		name = name[at:]
	}
	for suffix.MatchString(name) {
		name = suffix.ReplaceAllString(name, "")
	}
	return strings.ReplaceAll(name, ".", "-")
}

type thinking struct {
	Type    string `json:"type"`
	Budget  int64  `json:"budget_tokens,omitempty"`
	Display string `json:"display,omitempty"`
}

type outputConfig struct {
	Effort string  `json:"effort,omitempty"`
	Format *format `json:"format,omitempty"`
}

const (
	thinkingOff = "disabled"

	// minBudget is the least that the API accepts as budget_tokens.
	minBudget = 1024
)

// rung is one of loopd's efforts in the API's terms: its word, and the budget
// for models that only know a number.
type rung struct {
	effort string
	word   string
	budget int64
}

// ladder rises. The API knows no "minimal". The budgets double from the least
// that is accepted to where Anthropic saw models stop using more.
var ladder = [...]rung{
	{"minimal", "low", minBudget},
	{"low", "low", 2048},
	{"medium", "medium", 8192},
	{"high", "high", 16384},
	{"xhigh", "xhigh", 32768},
}

// rungOf is the rung of an effort or, where none is set, the highest that a
// budget reaches.
func rungOf(want loop.Reasoning) (rung, error) {
	best := ladder[0]
	for _, r := range ladder {
		if r.effort == want.Effort {
			return r, nil
		}
		if r.budget <= want.Budget {
			best = r
		}
	}
	if want.Effort != "" {
		return rung{}, fmt.Errorf("reasoning effort %q is unknown; use none, minimal, low, medium, high or xhigh", want.Effort)
	}
	return best, nil
}

// reason says what a request asks of the model's thinking; nil asks nothing.
// Without fits, the transcript is one that a fixed budget is refused with.
func (t traits) reason(want loop.Reasoning, maxTokens int64, fits bool) (*thinking, *outputConfig, error) {
	if want == (loop.Reasoning{}) {
		return nil, nil, nil
	}
	if want.Effort == "none" {
		return t.none()
	}
	r, err := rungOf(want)
	if err != nil {
		return nil, nil, err
	}
	var out *outputConfig
	if t.effort != "" && (want.Effort != "" || !t.budget) {
		out = &outputConfig{Effort: r.word}
		if r.word == "xhigh" {
			out.Effort = t.effort
		}
	}
	if t.budget && (want.Budget > 0 || !t.adaptive) {
		if budget := room(cmp.Or(want.Budget, r.budget), maxTokens); fits && budget > 0 {
			return &thinking{Type: "enabled", Budget: budget}, out, nil
		}
	}
	if t.adaptive {
		// Without the display the newer models send their thinking empty, and
		// nobody who watches sees that they are at work. It costs the same.
		return &thinking{Type: "adaptive", Display: "summarized"}, out, nil
	}
	return nil, out, nil
}

// none turns thinking off, or as far down as the model allows.
func (t traits) none() (*thinking, *outputConfig, error) {
	switch {
	case t.off != "":
		return &thinking{Type: t.off}, nil, nil
	case t.effort != "":
		return nil, &outputConfig{Effort: "low"}, nil
	}
	return nil, nil, nil
}

// room fits a budget into the output limit, which thinking is a part of. It is 0
// where not even the least fits. Of a limit that the budget would fill, half is
// left for the answer.
func room(budget, maxTokens int64) int64 {
	if budget >= maxTokens {
		budget = maxTokens / 2
	}
	budget = max(budget, minBudget)
	if budget >= maxTokens {
		return 0
	}
	return budget
}

// thinkingFits reports whether thinking with a fixed budget is accepted with this
// transcript. The API wants the tool calls that a request continues to begin with
// a thinking block of its own, which a message from another model cannot have.
// Once thinking is left out, it stays out until the calls are done, so that the
// prompt cache is not lost again and again.
func thinkingFits(messages []loop.Message, model string) bool {
	var first *loop.Message // of the calls that the request continues
	results := false
	for i := len(messages) - 1; i >= 0; i-- {
		m := &messages[i]
		if m.Role == loop.RoleUser {
			results = results || slices.ContainsFunc(m.Parts, func(p loop.Part) bool { return p.Kind == loop.PartToolResult })
			continue
		}
		if !results {
			break
		}
		if !replayable(*m, model) {
			return false
		}
		first, results = m, false
	}
	return first == nil || beginsThinking(first.Native.JSON)
}

// beginsThinking reads no further than the first block.
func beginsThinking(content []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(content))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return false
	}
	var b struct {
		Type string `json:"type"`
	}
	return dec.Decode(&b) == nil && (b.Type == "thinking" || b.Type == "redacted_thinking")
}
