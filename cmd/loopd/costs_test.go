package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
	"github.com/loopd/loopd/internal/provider/anthropic"
	"github.com/loopd/loopd/internal/provider/gemini"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/responses"
)

// usageCase is a real usage report and what an independent program makes of it
// for every provider whose API has the members it looks for.
type usageCase struct {
	Model string `json:"model"`
	Body  struct {
		Usage         json.RawMessage `json:"usage"`
		UsageMetadata json.RawMessage `json:"usageMetadata"`
	} `json:"body"`
	Expected []expectedCost `json:"expected"`
}

type expectedCost struct {
	Provider  string         `json:"provider"`
	Flavor    string         `json:"flavor"`
	InputUSD  *amount        `json:"input_usd"`
	OutputUSD *amount        `json:"output_usd"`
	Usage     expectedTokens `json:"usage"`
}

// expectedTokens are counted as OpenAI does: input has all that was read, output
// has reasoning in it.
type expectedTokens struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_tokens"`
	CacheWrite int64 `json:"cache_write_tokens"`
	Reasoning  int64 `json:"output_reasoning_tokens"`
	AudioIn    int64 `json:"input_audio_tokens"`
	AudioOut   int64 `json:"output_audio_tokens"`
	AudioRead  int64 `json:"cache_audio_read_tokens"`
}

// amount is an exact amount of money; the file has some as 7E-7.
type amount struct{ usd loop.USD }

func (a *amount) UnmarshalJSON(b []byte) error {
	var exact big.Rat
	if err := exact.UnmarshalText(bytes.Trim(b, `"`)); err != nil {
		return err
	}
	exact.Mul(&exact, big.NewRat(int64(loop.OneUSD), 1))
	if !exact.IsInt() {
		return fmt.Errorf("%s is finer than loopd's money", b)
	}
	a.usd = loop.USD(exact.Num().Int64())
	return nil
}

// wireOf names the adapter that speaks a flavor of a provider's API; empty: none.
// xAI's is left out: it counts reasoning beside the completion, so its reading of
// others' reports, of which it has no price, says nothing.
func wireOf(provider, flavor string) string {
	if provider == "x-ai" {
		return ""
	}
	switch flavor {
	case "chat":
		return "openai"
	case "responses", "anthropic":
		return flavor
	case "default":
		switch provider {
		case "anthropic":
			return "anthropic"
		case "google":
			return "gemini"
		case "groq", "mistral":
			return "openai"
		}
	}
	return ""
}

// wire names the API that the report itself is of, by its members.
func (c usageCase) wire() (name string, raw json.RawMessage) {
	raw = c.Body.Usage
	if c.Body.UsageMetadata != nil {
		raw = c.Body.UsageMetadata
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return "", nil
	}
	has := func(member string) bool { return members[member] != nil }
	switch {
	case has("promptTokenCount") && has("totalTokenCount"):
		return "gemini", raw
	case has("prompt_tokens") && has("completion_tokens"):
		return "openai", raw
	case has("input_tokens") && has("output_tokens") && has("total_tokens"):
		return "responses", raw
	case has("input_tokens") && has("output_tokens"):
		return "anthropic", raw
	}
	return "", nil
}

// What a real call cost comes out of loopd's own adapters and price book as an
// independent program computes it, to the last pico-dollar, for every provider
// whose price it knows. Where it does not, the difference has a name and a number
// here, and only one of them makes loopd's amount the smaller.
func TestRecordedUsageCosts(t *testing.T) {
	t.Parallel()
	book, err := pricing.Bundled()
	if err != nil {
		t.Fatal(err)
	}
	bodies, tokens, costs := map[string]int{}, map[string]int{}, map[string]int{}
	for _, c := range usageCases(t) {
		name, raw := c.wire()
		bodies[cmp.Or(name, "not of an answer: embeddings")]++
		if name == "" {
			continue
		}
		got, complete := normalise(name, raw)
		if !complete {
			t.Errorf("%s: the adapter takes the report as incomplete: %s", name, raw)
		}
		for _, want := range c.Expected {
			if wireOf(want.Provider, want.Flavor) != name {
				continue // what an API would make of another's report
			}
			for _, difference := range differences(t, want.Usage, got) {
				tokens[difference]++
			}
			if want.InputUSD != nil && want.OutputUSD != nil {
				costs[compareCost(t, book, c.Model, want, got)]++
			}
		}
	}
	for _, table := range []struct {
		name      string
		want, got map[string]int
	}{
		{"reports by the adapter that reads them", wantBodies(), bodies},
		{"how tokens are told apart", wantTokens(), tokens},
		{"costs", wantCosts(), costs},
	} {
		if diff := gocmp.Diff(table.want, table.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", table.name, diff)
		}
	}
}

func wantBodies() map[string]int {
	return map[string]int{
		"anthropic":                    202,
		"gemini":                       435,
		"not of an answer: embeddings": 21,
		"openai":                       310,
		"responses":                    235,
	}
}

func wantTokens() map[string]int {
	return map[string]int{
		totalOnly:    24,
		sameTokens:   4904,
		readAlone:    212,
		writeAlone:   61,
		thoughtAlone: 36,
	}
}

func wantCosts() map[string]int {
	return map[string]int{
		"agree: anthropic chat":                                  1,
		"agree: anthropic default":                               202,
		"agree: azure anthropic":                                 202,
		"agree: azure chat":                                      114,
		"agree: azure responses":                                 213,
		"agree: cerebras chat":                                   6,
		"agree: deepseek chat":                                   6,
		"agree: google anthropic":                                202,
		"agree: google chat":                                     3,
		"agree: google default":                                  386,
		"agree: groq default":                                    73,
		"agree: huggingface_together chat":                       20,
		"agree: mistral default":                                 19,
		"agree: openai chat":                                     114,
		"agree: openai responses":                                215,
		"agree: openrouter chat":                                 51,
		"agree: zhipuai chat":                                    6,
		"less: audio costs what text does, and loopd sends none": 38,
		"more: cache writes, which the other program does not look for there; OpenRouter says that it charged loopd's amount": 3,
		"more: text that an image model writes costs what its images do":                                                      5,
		"more: the other program takes the model for its predecessor":                                                         19,
		totalOnly: 2,
		"refused, as a part of the row is not known: azure/computer-use-preview-2025-03-11":       1,
		"refused, as a part of the row is not known: azure/gpt-4.5-preview-2025-02-27":            1,
		"refused, as a part of the row is not known: cerebras/qwen-3-coder-480b":                  2,
		"refused, as a part of the row is not known: openai/computer-use-preview-2025-03-11":      1,
		"refused, as a part of the row is not known: openai/gpt-4.5-preview-2025-02-27":           1,
		"refused, as a part of the row is not known: openrouter/Qwen/Qwen2.5-VL-72B-Instruct":     2,
		"refused, as a part of the row is not known: openrouter/google/gemini-2.0-flash-exp:free": 1,
		"refused, as a part of the row is not known: openrouter/mistralai/mistral-small":          1,
		"refused, as a part of the row is not known: openrouter/o1-mini-2024-09-12":               1,
		"refused, as a part of the row is not known: openrouter/qwen/qwen3-30b-a3b-instruct-2507": 1,
		"refused, as a part of the row is not known: openrouter/qwen/qwen3-32b":                   5,
		"refused, as a part of the row is not known: openrouter/z-ai/glm-4.6":                     2,
	}
}

// normalise has an adapter read a report.
func normalise(wire string, raw json.RawMessage) (loop.Usage, bool) {
	switch wire {
	case "anthropic":
		return anthropic.Usage(raw)
	case "gemini":
		return gemini.Usage(raw)
	case "openai":
		return openai.Usage(raw)
	default:
		return responses.Usage(raw)
	}
}

const (
	totalOnly    = "more: thoughts that only the total has"
	readAlone    = "told apart: cache reads, which the other program does not look for there"
	writeAlone   = "told apart: cache writes, which the other program does not look for there"
	thoughtAlone = "told apart: reasoning, which the other program does not look for there"
	sameTokens   = "same"
)

// differences names what the two make of a report.
func differences(t *testing.T, want expectedTokens, got loop.Usage) (names []string) {
	t.Helper()
	written := got.CacheWrite5m + got.CacheWrite1h
	if got.Input() != want.Input || got.AllOutput() < want.Output || got.CacheRead < want.CacheRead || written < want.CacheWrite || got.Reasoning < want.Reasoning {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got.AllOutput() > want.Output {
		names = append(names, totalOnly)
	}
	if got.CacheRead > want.CacheRead {
		names = append(names, readAlone)
	}
	if written > want.CacheWrite {
		names = append(names, writeAlone)
	}
	if got.Reasoning > want.Reasoning && got.AllOutput() == want.Output {
		names = append(names, thoughtAlone)
	}
	if len(names) == 0 {
		names = []string{sameTokens}
	}
	return names
}

// compareCost names how the book's amount for got relates to the expected one.
func compareCost(t *testing.T, book *pricing.Book, model string, want expectedCost, got loop.Usage) string {
	t.Helper()
	asOf := time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC) // of the expected amounts
	price, err := book.PriceAt(want.Provider+"/"+model, asOf)
	if errors.Is(err, pricing.ErrUnpriced) {
		return "refused, as a part of the row is not known: " + want.Provider + "/" + model
	}
	if err != nil {
		t.Error(err)
	}
	cost := price.Cost(got)
	input, output := cost.Input+cost.CacheRead+cost.CacheWrite, cost.Output
	name := ""
	switch {
	case input == want.InputUSD.usd && output == want.OutputUSD.usd:
		return "agree: " + want.Provider + " " + want.Flavor
	case want.Usage.AudioIn > 0:
		return "less: audio costs what text does, and loopd sends none"
	case strings.Contains(model, "-image"):
		name = "more: text that an image model writes costs what its images do"
	case model == "mistral-medium-latest":
		name = "more: the other program takes the model for its predecessor"
	case got.CacheWrite5m > want.Usage.CacheWrite:
		name = "more: cache writes, which the other program does not look for there; OpenRouter says that it charged loopd's amount"
	case got.AllOutput() > want.Usage.Output:
		name = totalOnly
	}
	if name == "" || input < want.InputUSD.usd || output < want.OutputUSD.usd {
		t.Errorf("%s, %s: input %s, output %s; want %s and %s for %+v", price.Model, want.Flavor, input, output, want.InputUSD.usd, want.OutputUSD.usd, want.Usage)
	}
	return name
}

// usageCases are all recorded reports.
func usageCases(t *testing.T) (cases []usageCase) {
	t.Helper()
	f, err := os.Open("../../internal/pricing/testdata/usage-cases.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(z); s.Scan(); {
		var c usageCase
		if err := json.Unmarshal(slices.Clone(s.Bytes()), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}
