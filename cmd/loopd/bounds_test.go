package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/loopd/loopd/internal/provider/providertest"
	"github.com/loopd/loopd/internal/provider/responses"
)

// wire is a wire format with its recordings.
type wire struct {
	name   string
	folder string
	open   func(baseURL string) providertest.Provider
	read   func(body []byte) (sent, error)
}

func wires() []wire {
	return []wire{
		{"anthropic", "anthropic/testdata", func(url string) providertest.Provider { return anthropic.New(anthropic.Config{BaseURL: url}) }, readAnthropic},
		{"openai", "openai/testdata", func(url string) providertest.Provider { return openai.New(openai.Config{BaseURL: url}) }, readOpenAI},
		{"responses", "responses/testdata", func(url string) providertest.Provider { return responses.New(responses.Config{BaseURL: url}) }, readResponses},
		{"gemini", "gemini/testdata/answers", func(url string) providertest.Provider { return gemini.New(gemini.Config{BaseURL: url}) }, readGemini},
	}
}

// neverSent are the recordings whose requests have what no run of loopd sends and what
// makes tokens, with a word of the reason. The bound says nothing about them.
func neverSent() map[string]string {
	return map[string]string{
		"anthropic/cache-read":                 "tool_search",
		"anthropic/cache-write":                "tool_search",
		"anthropic/pause-turn-stream":          "unknown field", // of the server's web search
		"anthropic/server-tool":                "code_execution",
		"gemini/cached":                        "cachedContent",
		"openai/compatible/ollama-json-schema": "response_format",
		"openai/compatible/deepseek-tool-call-2, after its first answer": "roll_dice", // new tools within a run
		"openai/openai/chat-refusal":                                     "response_format",
		"openai/openai/chat-refusal-stream":                              "response_format",
		"responses/openai/responses-refusal":                             "json_schema",
		"responses/openai/responses-refusal-stream":                      "json_schema",
		"responses/openai/responses-web-search":                          "web_search",
	}
}

// bounded is how a bound compares with what was billed.
type bounded struct {
	what   string // "bytes", or "anchor" if the answer before was counted
	factor float64
}

// No real exchange was billed for more input than its run's bound, or for more money
// than its hold, neither where all there is are bytes nor where the provider has counted
// the request before it. This is what the cost guard's proof stands on.
func TestHoldsCoverWhatWasBilled(t *testing.T) {
	t.Parallel()
	book, err := pricing.Bundled()
	if err != nil {
		t.Fatal(err)
	}
	var all []bounded
	left := map[string]string{}
	for _, w := range wires() {
		exchanges := w.billed(t)
		for _, name := range sortedNames(exchanges) {
			x, id := exchanges[name], w.name+"/"+name
			if x.unsent != nil {
				left[id] = x.unsent.Error()
				continue
			}
			alone := newReplay(t, id, x, book)
			all = append(all, alone.check(x, "bytes"))
			if base, second := strings.CutSuffix(name, "-2"); second {
				first, id := exchanges[base+"-1"], id+", after its first answer"
				if err := goesOn(first.sent, x.sent); err != nil {
					left[id] = err.Error()
					continue
				}
				r := newReplay(t, id, first, book)
				r.answerAndGoOn(first, x)
				if bound := r.next().InputBound; bound >= alone.next().InputBound {
					t.Errorf("%s: what the provider counted brings the bound from %d to %d", r.name, alone.next().InputBound, bound)
				}
				all = append(all, r.check(x, "anchor"))
			}
		}
	}
	checkLeft(t, left)
	checkTightness(t, all)
}

// checkLeft compares what was left out with the closed list.
func checkLeft(t *testing.T, left map[string]string) {
	t.Helper()
	want := neverSent()
	for name, reason := range left {
		if word, listed := want[name]; !listed || !strings.Contains(reason, word) {
			t.Errorf("%s is left out: %s", name, reason)
		}
	}
	for name := range want {
		if left[name] == "" {
			t.Errorf("%s is listed, but its request can be that of a run", name)
		}
	}
}

// checkTightness tells how far above the truth the bounds are, and that none was
// forgotten.
func checkTightness(t *testing.T, all []bounded) {
	t.Helper()
	factors := map[string][]float64{}
	for _, b := range all {
		factors[b.what] = append(factors[b.what], b.factor)
	}
	count := map[string]int{}
	for what, f := range factors {
		slices.Sort(f)
		count[what] = len(f)
		t.Logf("bound by %s: %d calls, %.2f to %.1f times what was billed, median %.2f", what, len(f), f[0], f[len(f)-1], f[len(f)/2])
	}
	if diff := gocmp.Diff(map[string]int{"bytes": 73, "anchor": 13}, count); diff != "" {
		t.Errorf("checked calls (-want +got):\n%s", diff)
	}
}

// exchange is a recorded request with what it was billed, or why no run sends it.
type exchange struct {
	sent   sent
	model  string
	answer loop.ModelAnswer
	unsent error
}

// billed has the adapter read the answers to all recorded requests, and returns those
// that came with a bill.
func (w wire) billed(t *testing.T) map[string]exchange {
	t.Helper()
	recordings := os.DirFS("../../internal/provider/" + w.folder)
	exchanges := map[string]exchange{}
	err := fs.WalkDir(recordings, ".", func(path string, _ fs.DirEntry, err error) error {
		name, isJSON := strings.CutSuffix(path, ".json")
		if err != nil || !isJSON {
			return err
		}
		recorded := providertest.Load(t, recordings, path)
		if body := string(recorded.Request.Body); body == "" || body == "null" || strings.HasPrefix(name, "composed/") {
			return nil // nobody was billed for what was composed
		}
		x := exchange{}
		x.answer, err = w.open(providertest.Serve(t, recorded).URL).Generate(t.Context(), providertest.Ask())
		if refused := (*loop.ModelError)(nil); errors.As(err, &refused) || x.answer.UsageMissing {
			return nil
		}
		if err != nil {
			return err
		}
		x.sent, x.unsent = w.read(recorded.Request.Body)
		x.model = w.name + "/" + cmp.Or(x.sent.model, modelInPath(t, recordings, path))
		exchanges[name] = x
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return exchanges
}

// modelInPath is the model that a request names in its path.
func modelInPath(t *testing.T, recordings fs.FS, path string) string {
	t.Helper()
	raw, err := fs.ReadFile(recordings, path)
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Request struct {
			Path string `json:"path"`
		} `json:"request"`
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	_, model, _ := strings.Cut(recorded.Request.Path, "/models/")
	model, _, _ = strings.Cut(model, ":")
	return model
}

func sortedNames(exchanges map[string]exchange) []string {
	var names []string
	for name := range exchanges {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// replay is a run that sends what a recorded request has.
type replay struct {
	t     *testing.T
	name  string
	state *loop.State
	seq   int64
	calls []loop.ToolCall // of the newest answer, without a result
}

// replayTime is when replays happen: all at once, so that no guard of time sees them.
var replayTime = time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC)

// newReplay makes the run and lets it come to the point where the request is sent.
func newReplay(t *testing.T, name string, x exchange, book *pricing.Book) *replay {
	t.Helper()
	r := &replay{t: t, name: name, state: &loop.State{}}
	spec := loop.Spec{
		Definition: loop.AgentSpec{Model: x.model, Instructions: x.sent.instructions, Tools: x.sent.tools},
		Limits:     wideLimits(x), Price: priceFor(x.model, book),
	}
	if len(x.sent.messages) == 0 || x.sent.messages[0].Role != loop.RoleUser {
		t.Fatalf("%s does not begin with a user's message", name)
	}
	spec.Input = x.sent.messages[0].Text()
	r.apply(loop.Created{Spec: spec}, loop.Claimed{Attempt: 1})
	r.tell(x.sent.messages[1:])
	return r
}

// wideLimits let everything pass but the answer's size: that is the request's. A
// request without one gets room for what was written: loopd sends none without.
func wideLimits(x exchange) loop.Limits {
	const many = 1 << 20
	l := loop.Limits{
		Iterations: many, ModelCalls: many, Cost: 1000 * loop.OneUSD, TotalTokens: 1 << 50, OutputTokens: 1 << 50,
		Deadline: time.Hour, WallTime: time.Hour, ToolCalls: many, CallsPerAnswer: many, ParallelCalls: many,
		IdenticalIters: many, ErrorIters: many, InvalidIters: many, FinalOutput: 1024, Reasks: many, StopAt: 1,
	}
	l.AnswerOutput = x.sent.maxOutput
	if l.AnswerOutput == 0 {
		l.AnswerOutput = max(16_384, x.answer.Usage.AllOutput())
	}
	return l
}

// priceFor is the model's row, or the dearest shape of one where the book has none. It
// has no window, which would hide a bound that is too low.
func priceFor(model string, book *pricing.Book) loop.Price {
	price, err := book.PriceAt(strings.Replace(model, "responses/", "openai/", 1), replayTime)
	if err != nil {
		rates := loop.Rates{
			Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD,
			CacheWrite1h: 6 * loop.MicroUSD, Output: 15 * loop.MicroUSD, Reasoning: 20 * loop.MicroUSD,
		}
		price = loop.Price{Model: model, Rates: rates, Tiers: []loop.Tier{{AboveInput: 100, Rates: rates}}}
	}
	price.Window, price.MaxOutput = 1<<40, 0
	return price
}

// apply appends events.
func (r *replay) apply(bodies ...loop.Body) {
	r.t.Helper()
	for _, b := range bodies {
		r.seq++
		if err := r.state.Apply(loop.Event{Seq: r.seq, At: replayTime, Body: b}); err != nil {
			r.t.Fatalf("%s: %v", r.name, err)
		}
	}
}

// next is the model call that is due.
func (r *replay) next() loop.ModelStarted {
	r.t.Helper()
	call, ok := r.state.Next(replayTime).(loop.CallModel)
	if !ok {
		r.t.Fatalf("%s: next is %#v, want a model call", r.name, r.state.Next(replayTime))
	}
	return call.Started
}

// tell lets the run have said and heard the messages. What the answers among them were
// billed is not known.
func (r *replay) tell(messages []loop.Message) {
	r.t.Helper()
	for _, m := range messages {
		if m.Role == loop.RoleAssistant {
			finish := loop.FinishDone
			if len(m.Calls()) > 0 {
				finish = loop.FinishToolCalls
			}
			r.answer(loop.ModelAnswered{Message: m, Finish: finish, Estimated: true})
			continue
		}
		for _, p := range m.Parts {
			if p.Result == nil {
				r.apply(loop.AnswerRejected{Say: p.Text})
				continue
			}
			r.apply(loop.CallRefused{CallID: r.callOf(p.Result), Outcome: loop.OutcomePermanent, Content: p.Result.Content})
		}
	}
}

// answer starts the model call that is due and ends it. The calls in the answer get the
// ids that the engine gives.
func (r *replay) answer(a loop.ModelAnswered) {
	r.t.Helper()
	started := r.next()
	a.Call = started.Call
	a.Message.Parts = slices.Clone(a.Message.Parts)
	r.calls = nil
	for i, p := range a.Message.Parts {
		if p.Call != nil {
			call := *p.Call
			call.ID = fmt.Sprintf("c%d-%d", started.Call, len(r.calls)+1)
			a.Message.Parts[i].Call = &call
			r.calls = append(r.calls, call)
		}
	}
	r.apply(started, a)
	if !r.state.AnswerKept() {
		r.t.Fatalf("%s: an answer in the request is one that runs do not keep: %+v", r.name, a.Message)
	}
}

// callOf finds the call that a result answers, by the provider's id. Where the provider
// gave none, whoever made the recording made one up.
func (r *replay) callOf(result *loop.ToolResult) string {
	r.t.Helper()
	i := slices.IndexFunc(r.calls, func(c loop.ToolCall) bool { return c.ProviderID == result.ProviderID })
	if i < 0 {
		i = slices.IndexFunc(r.calls, func(c loop.ToolCall) bool { return c.ProviderID == "" })
	}
	if i < 0 {
		r.t.Fatalf("%s: a result answers none of %+v: %+v", r.name, r.calls, result)
	}
	id := r.calls[i].ID
	r.calls = slices.Delete(r.calls, i, i+1)
	return id
}

// check compares the call that is due with what it was billed.
func (r *replay) check(x exchange, what string) bounded {
	r.t.Helper()
	started, usage := r.next(), x.answer.Usage
	if started.InputBound < usage.Input() {
		r.t.Errorf("%s: the bound by %s is %d tokens, %d were billed", r.name, what, started.InputBound, usage.Input())
	}
	if started.MaxOutput < usage.AllOutput() {
		r.t.Errorf("%s: the answer may have %d tokens, %d were billed", r.name, started.MaxOutput, usage.AllOutput())
	}
	price := r.state.Spec().Price
	if cost := price.Cost(usage).Total(); started.Hold < cost || started.Hold != price.Bound(started.InputBound, started.MaxOutput) {
		r.t.Errorf("%s: the hold is %s USD, the bill %s USD", r.name, started.Hold, cost)
	}
	return bounded{what, float64(started.InputBound) / float64(usage.Input())}
}

// goesOn checks that the second request is a later one of the same run.
func goesOn(first, second sent) error {
	n := len(first.messages)
	if len(second.messages) <= n {
		return fmt.Errorf("it has %d messages, the first has %d", len(second.messages), n)
	}
	second.messages = second.messages[:n]
	if diff := gocmp.Diff(first, second, gocmp.AllowUnexported(sent{})); diff != "" {
		return fmt.Errorf("it does not begin as the first (-first +second):\n%s", diff)
	}
	return nil
}

// answerAndGoOn takes the real answer to the first request, with what it was billed, and
// what the second request adds to it.
func (r *replay) answerAndGoOn(first, second exchange) {
	r.t.Helper()
	r.answer(loop.ModelAnswered{Message: first.answer.Message, Finish: first.answer.Finish, Usage: first.answer.Usage})
	r.tell(second.sent.messages[len(first.sent.messages)+1:])
}
