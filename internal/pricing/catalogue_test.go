package pricing_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

func load(t *testing.T, text string) *pricing.Book {
	t.Helper()
	b, err := pricing.Load(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The models that people use most with each provider can be run.
func TestCommonModelsAreComplete(t *testing.T) {
	t.Parallel()
	book := bundled(t)
	for ref := range strings.FieldsSeq(`
		anthropic/claude-sonnet-4-5 anthropic/claude-opus-4-8 anthropic/claude-haiku-4-5-20251001
		openai/gpt-5.2 openai/gpt-4o-mini openai/o3 openai/o4-mini openai/gpt-4.1
		gemini/gemini-2.5-pro gemini/gemini-2.5-flash google/gemini-3-pro-preview gemini/gemini-3.5-flash
		groq/llama-3.3-70b-versatile groq/llama-3.1-8b-instant groq/openai/gpt-oss-120b groq/qwen/qwen3-32b groq/moonshotai/kimi-k2-instruct-0905
		mistral/mistral-large-latest mistral/mistral-large-2512 mistral/mistral-medium-latest mistral/mistral-medium-2508 mistral/mistral-small-latest mistral/codestral-latest mistral/devstral-2512
		deepseek/deepseek-chat deepseek/deepseek-reasoner deepseek/deepseek-v4-pro
		xai/grok-4 xai/grok-4-fast x-ai/grok-4.3 xai/grok-code-fast-1
		azure/gpt-4o azure/claude-sonnet-4-5 azure/o3-2025-04-16
		bedrock/global.anthropic.claude-opus-4-6-v1:0 aws/regional.anthropic.claude-sonnet-4-20250514-v1:0
		vertex/claude-opus-4-8
		openrouter/anthropic/claude-sonnet-4.5 openrouter/openai/gpt-5.2 openrouter/google/gemini-2.5-flash openrouter/openai/gpt-oss-120b
		together/meta-llama/Llama-3.3-70B-Instruct-Turbo fireworks/accounts/fireworks/models/gpt-oss-120b cerebras/gpt-oss-120b
		moonshot/kimi-k2.5 zai/glm-4.7`) {
		if p, err := book.Price(ref); err != nil || p.Model != ref {
			t.Errorf("%s: %+v, %v", ref, p, err)
		}
	}
}

// What models read and write is known for those that matter, and not guessed for
// the others.
func TestReadsAndMaxOutput(t *testing.T) {
	t.Parallel()
	both := []loop.PartKind{loop.PartImage, loop.PartDocument}
	for ref, want := range map[string]loop.Price{
		"anthropic/claude-sonnet-4-5":  {Reads: both, MaxOutput: 64_000},
		"anthropic/claude-opus-4-1":    {Reads: both, MaxOutput: 32_000},
		"anthropic/claude-3-haiku":     {Reads: both[:1], MaxOutput: 4_096},
		"openai/gpt-4o":                {Reads: both, MaxOutput: 16_384}, // catwalk's default is half of it
		"openai/o3-mini":               {MaxOutput: 100_000},
		"openai/gpt-4-turbo":           {Reads: both[:1], MaxOutput: 4_096},
		"gemini/gemini-2.5-pro":        {Reads: both, MaxOutput: 65_535},
		"azure/gpt-4o":                 {Reads: both, MaxOutput: 16_384},
		"groq/llama-3.3-70b-versatile": {MaxOutput: 32_768},
		"deepseek/deepseek-chat":       {},
	} {
		got, err := bundled(t).Price(ref)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want, loop.Price{Reads: got.Reads, MaxOutput: got.MaxOutput}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
	}
}

// TestStructured: only of models of which it is documented does the book say that
// they can be kept to a schema, and an operator says it of others.
func TestStructured(t *testing.T) {
	t.Parallel()
	book := bundled(t)
	for ref, want := range map[string]bool{
		"anthropic/claude-sonnet-4-5": true, "anthropic/claude-haiku-4-5-20251001": true, "anthropic/claude-opus-4-1": false,
		"openai/gpt-4o": true, "openai/gpt-5.2": true, "openai/gpt-4-turbo": false, "openai/o3-mini": true, "openai/gpt-5.2-pro": false,
		"azure/gpt-4o": true, "gemini/gemini-2.5-pro": true, "xai/grok-4-1-fast": true, "xai/grok-3": false,
		"mistral/mistral-medium-3.5": true, "groq/llama-3.3-70b-versatile": false, "openrouter/openai/gpt-4o": true,
		"bedrock/global.anthropic.claude-opus-4-6-v1:0": false, // its endpoints that loopd speaks to refuse schemas
	} {
		if got, err := book.Price(ref); err != nil || got.Structured != want {
			t.Errorf("%s: structured %v, want %v, error %v", ref, got.Structured, want, err)
		}
	}
	own := load(t, strings.Replace(localBook, `"free": true`, `"free": true, "structured": true`, 1))
	if got, err := own.Price("ollama/qwen3:14b"); err != nil || !got.Structured {
		t.Errorf("%+v, %v: the operator says that the model is", got, err)
	}
	if list := own.List("ollama"); !list[len(list)-1].Structured && !list[0].Structured && !list[1].Structured {
		t.Errorf("the listing does not show it: %+v", list)
	}
}

// The list has xAI's prices for small prompts only, which would have let a long
// run overshoot. The rows that correct it are gone if this fails.
func TestLongPromptsOfXAIAreDearer(t *testing.T) {
	t.Parallel()
	for ref, threshold := range map[string]int64{"xai/grok-4": 128_000, "xai/grok-4-1-fast": 128_000, "xai/grok-4.20": 200_000, "xai/grok-4.3": 200_000} {
		p, err := bundled(t).Price(ref)
		if err != nil {
			t.Fatal(err)
		}
		below, at := p.Cost(loop.Usage{InputUncached: threshold - 1}), p.Cost(loop.Usage{InputUncached: threshold})
		if at.Input != 2*(below.Input+p.Rates.Input) {
			t.Errorf("%s: %d tokens cost %s, one less %s; want twice the price", ref, threshold, at.Input, below.Input)
		}
	}
}

const localBook = `{"version": "ours", "date": "2026-09-01", "providers": [{"provider": "ollama", "models": [
	{"id": "qwen3:8b", "match": {"starts_with": "qwen3"}, "context_window": 40960, "max_output": 8192, "reads": ["image"], "image_tokens": 1500, "free": true},
	{"id": "unknown", "context_window": 40960, "prices": {"input_mtok": 0, "output_mtok": 0}},
	{"id": "empty"}]}]}`

// A model costs nothing only where the operator says so in that word.
func TestFreeIsSpelledOut(t *testing.T) {
	t.Parallel()
	book := load(t, localBook)
	got, err := book.Price("ollama/qwen3:14b")
	want := loop.Price{
		Model: "ollama/qwen3:14b", Version: "ours", Window: 40_960, MaxOutput: 8_192,
		Reads: []loop.PartKind{loop.PartImage}, ImageTokens: 1_500, Free: true,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if usd := got.Cost(loop.Usage{InputUncached: 1_000_000, Output: 1_000_000}).Total(); usd != 0 {
		t.Errorf("a free model costs %s", usd)
	}
	if _, err := book.Price("ollama/unknown"); err == nil {
		t.Error("a price of zero counts as free")
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	var got []string
	for _, l := range load(t, localBook).List("ollama") {
		got = append(got, strings.TrimSpace(l.Ref+" "+l.Why))
		if l.Complete != (l.Why == "") || l.Free != l.Complete {
			t.Errorf("%+v", l)
		}
	}
	if diff := cmp.Diff([]string{
		`ollama/empty ollama/empty: no price is in force; for a model that costs nothing write "free": true`,
		"ollama/qwen3:8b",
		"ollama/unknown price of ollama/unknown: input and output price must both be known and above zero",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An operator's row replaces the bundled one of the same id in the list, and is
// listed by whatever name the provider is asked for.
func TestListHasEachModelOnce(t *testing.T) {
	t.Parallel()
	book := bundled(t).With(load(t, `{"version": "ours", "providers": [{"provider": "google", "models": [
		{"id": "gemini-2.5-pro", "context_window": 1000, "prices": {"input_mtok": 1, "output_mtok": 2}}]}]}`))
	for _, name := range []string{"gemini", "google"} {
		list := book.List(name)
		own := slices.DeleteFunc(slices.Clone(list), func(l pricing.Listing) bool { return l.Ref != name+"/gemini-2.5-pro" })
		if len(own) != 1 || own[0].Version != "ours" || own[0].Window != 1000 || len(list) < 42 {
			t.Errorf("%s: %d models, of which %+v", name, len(list), own)
		}
	}
	if azure := bundled(t).List("azure"); !slices.ContainsFunc(azure, func(l pricing.Listing) bool { return l.Ref == "azure/gpt-4o" && l.Complete }) {
		t.Error("what Azure resells is not listed")
	}
}

func TestProvidersAndDate(t *testing.T) {
	t.Parallel()
	over := load(t, localBook)
	book := bundled(t).With(over).As("groq-eu", "groq")
	want := strings.Fields("anthropic azure bedrock cerebras deepseek fireworks gemini groq groq-eu huggingface-together mistral moonshot ollama openai openrouter together xai zai")
	if diff := cmp.Diff(want, book.Providers()); diff != "" {
		t.Errorf("providers (-want +got):\n%s", diff)
	}
	if got, want := book.Date(), time.Date(2026, 8, 21, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("date %s, want that of the bundled list, %s", got, want)
	}
	if got, want := load(t, `{"version": "v"}`).With(over).Date(), time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("date %s, want %s", got, want)
	}
}

// A provider under a name of the operator's choice has the prices of another,
// save where it has rows of its own.
func TestAs(t *testing.T) {
	t.Parallel()
	own := load(t, `{"version": "ours", "providers": [{"provider": "claude-eu", "models": [
		{"id": "gemini-2.5-pro", "context_window": 1000, "prices": {"input_mtok": 1, "output_mtok": 2}}]}]}`)
	book := bundled(t).With(own).As("claude-eu", "google")
	for ref, version := range map[string]string{
		"claude-eu/gemini-2.5-pro":   "ours",
		"claude-eu/gemini-2.5-flash": "genai-prices@47df840",
		"claude-eu/claude-sonnet-5":  "genai-prices@47df840", // resold by Google
	} {
		if p, err := book.Price(ref); err != nil || p.Model != ref || p.Version != version {
			t.Errorf("%s: %+v, %v; want version %s", ref, p, err, version)
		}
	}
	if _, err := bundled(t).Price("claude-eu/gemini-2.5-flash"); err == nil {
		t.Error("As changed the book that it was called on")
	}
	_, err := book.As("x", "gogle").Price("x/gemini-2.5-pro")
	if !errors.Is(err, pricing.ErrUnknownModel) || !strings.Contains(err.Error(), `x is to cost what gogle does, which is not among anthropic,`) {
		t.Errorf("got %v, want an error that names the providers", err)
	}
}
