package pricing_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// recordedUsage is a real usage object of either provider.
type recordedUsage struct {
	Input         int64 `json:"input_tokens"`
	Output        int64 `json:"output_tokens"`
	Prompt        int64 `json:"prompt_tokens"`
	Completion    int64 `json:"completion_tokens"`
	CacheRead     int64 `json:"cache_read_input_tokens"`
	CacheWrite    int64 `json:"cache_creation_input_tokens"`
	CacheCreation struct {
		OneHour int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	PromptDetails details `json:"prompt_tokens_details"`
	InputDetails  details `json:"input_tokens_details"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
		Audio     int64 `json:"audio_tokens"`
	} `json:"completion_tokens_details"`
}

type details struct {
	Cached int64 `json:"cached_tokens"`
	Write  int64 `json:"cache_write_tokens"`
	Audio  int64 `json:"audio_tokens"`
}

// usage sorts the tokens into disjoint buckets: Anthropic's input count leaves
// out cached tokens, OpenAI's counts include them, and both count reasoning as
// output.
func (r recordedUsage) usage(provider string) loop.Usage {
	if provider == "anthropic" {
		return loop.Usage{
			InputUncached: r.Input, CacheRead: r.CacheRead, CacheWrite5m: r.CacheWrite - r.CacheCreation.OneHour,
			CacheWrite1h: r.CacheCreation.OneHour, Output: r.Output,
		}
	}
	cached, written := r.PromptDetails.Cached+r.InputDetails.Cached, r.PromptDetails.Write+r.InputDetails.Write
	reasoning := r.OutputDetails.Reasoning + r.CompletionDetails.Reasoning
	return loop.Usage{
		InputUncached: r.Input + r.Prompt - cached - written, CacheRead: cached, CacheWrite5m: written,
		Output: r.Output + r.Completion - reasoning, Reasoning: reasoning,
	}
}

// An independent calculation of what real calls cost comes to the same amount,
// to the last pico-dollar.
func TestRecordedUsageCostsTheSame(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC) // of the recorded amounts
	book, counts := bundled(t), map[string]int{}
	for _, line := range gzipLines(t, "testdata/usage-cases.jsonl.gz") {
		var c struct {
			Model, Provider, Flavor string
			Usage                   recordedUsage
			InputUSD                loop.USD `json:"input_usd"`
			OutputUSD               loop.USD `json:"output_usd"`
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		price, err := book.PriceAt(c.Provider+"/"+c.Model, asOf)
		switch {
		case err != nil && strings.Contains(err.Error(), "context window must be known"):
			counts["left out: no context window, so loopd does not run the model"]++
			continue
		case err != nil:
			t.Errorf("%s/%s: %v", c.Provider, c.Model, err)
			continue
		case c.Usage.PromptDetails.Audio+c.Usage.CompletionDetails.Audio > 0:
			counts["left out: audio, which loopd does not send"]++
			continue
		}
		cost := price.Cost(c.Usage.usage(c.Provider))
		if input := cost.Input + cost.CacheRead + cost.CacheWrite; input != c.InputUSD || cost.Output != c.OutputUSD {
			t.Errorf("%s/%s: input %s, output %s; recorded %s and %s for %s", c.Provider, c.Model, input, cost.Output, c.InputUSD, c.OutputUSD, line)
			continue
		}
		counts["agree: "+c.Provider+" "+c.Flavor]++
	}
	if diff := cmp.Diff(map[string]int{
		"agree: anthropic default": 202, "agree: openai chat": 106, "agree: openai responses": 215,
		"left out: audio, which loopd does not send":                   2,
		"left out: no context window, so loopd does not run the model": 8,
	}, counts); diff != "" {
		t.Errorf("cases (-want +got):\n%s", diff)
	}
}

// A second public list has the same prices for the same models.
func TestPricesAgreeWithCatwalk(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/catwalk.json")
	if err != nil {
		t.Fatal(err)
	}
	var lists map[string][]struct {
		ID     string      `json:"id"`
		Input  json.Number `json:"cost_per_1m_in"`
		Output json.Number `json:"cost_per_1m_out"`
		Write  json.Number `json:"cost_per_1m_in_cached"`
		Read   json.Number `json:"cost_per_1m_out_cached"`
	}
	if err := json.Unmarshal(data, &lists); err != nil {
		t.Fatal(err)
	}
	agree := 0
	var differ []string
	for provider, models := range lists {
		for _, m := range models {
			ref := provider + "/" + m.ID
			price, err := bundled(t).PriceAt(ref, time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC))
			if err != nil {
				differ = append(differ, ref+" has no price")
				continue
			}
			r := price.Rates
			same := perMillion(t, m.Input) == r.Input && perMillion(t, m.Output) == r.Output
			if m.Read != "0" {
				same = same && perMillion(t, m.Read) == r.CacheRead
			}
			if write := perMillion(t, m.Write); write > r.Input { // else it is the price of reading, written twice
				same = same && write == r.CacheWrite5m
			}
			if !same {
				differ = append(differ, ref)
				continue
			}
			agree++
		}
	}
	slices.Sort(differ)
	if diff := cmp.Diff([]string{"anthropic/claude-mythos-5 has no price"}, differ); diff != "" || agree != 41 {
		t.Errorf("%d agree; the others (-want +got):\n%s", agree, diff)
	}
}

func perMillion(t *testing.T, n json.Number) loop.USD {
	t.Helper()
	usd, err := loop.ParseUSD(n.String())
	if err != nil {
		t.Fatal(err)
	}
	return usd / 1_000_000
}

func gzipLines(t *testing.T, path string) (lines [][]byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	for s.Scan() {
		lines = append(lines, slices.Clone(s.Bytes()))
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
