package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// The rates of the slow model, as the price file below has them.
const (
	slowInput  = 300 * loop.NanoUSD // per token
	slowOutput = 1500 * loop.NanoUSD
)

// noScript is for processes whose models are real ones.
const noScript = "models: {unused: {answers: [{text: unused}]}}\n"

const slowPrices = `{"version": "test", "date": "2026-11-30", "source": "the test", "providers": [{"provider": "slow", "models": [
 {"id": "talker", "match": {"equals": "talker"}, "context_window": 100000, "prices": {"input_mtok": 0.3, "output_mtok": 1.5}}]}]}`

// slowModel is a provider that takes its time, looks things up a few times and then
// answers, at great length. It keeps the bill.
type slowModel struct {
	*httptest.Server

	mu    sync.Mutex
	asked int
	bill  loop.USD      // of answers that were written to their end
	many  chan struct{} // closed when it was asked often
}

const often = 60

func newSlowModel(t *testing.T) *slowModel {
	t.Helper()
	m := &slowModel{many: make(chan struct{})}
	m.Server = httptest.NewServer(http.HandlerFunc(m.answer))
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

func (m *slowModel) answer(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Messages  []struct{ Role string }
		MaxTokens int64 `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	if m.asked++; m.asked == often {
		close(m.many)
	}
	m.mu.Unlock()
	select {
	case <-time.After(time.Duration(100+rand.IntN(200)) * time.Millisecond):
	case <-r.Context().Done():
		return
	}
	answers := 0
	for _, message := range asked.Messages {
		if message.Role == "assistant" {
			answers++
		}
	}
	input, output := int64(500), asked.MaxTokens/2+rand.Int64N(asked.MaxTokens/2)
	delta, finish := `{"role":"assistant","content":"That is all."}`, "stop"
	if answers < 3+rand.IntN(4) {
		delta = fmt.Sprintf(`{"role":"assistant","tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":"look","arguments":"{\"page\":%d}"}}]}`, answers, answers)
		finish = "tool_calls"
	}
	w.Header().Set("Content-Type", "text/event-stream")
	const chunk = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"talker",`
	fmt.Fprintf(w, chunk+`"choices":[{"index":0,"delta":%s,"finish_reason":null}]}`+"\n\n", delta)
	fmt.Fprintf(w, chunk+`"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`+"\n\n", finish)
	fmt.Fprintf(w, chunk+`"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\ndata: [DONE]\n\n", input, output, input+output)
	if r.Context().Err() == nil {
		m.mu.Lock()
		m.bill += loop.USD(input)*slowInput + loop.USD(output)*slowOutput
		m.mu.Unlock()
	}
}

// moneySampler looks at a budget all the while, each time in one snapshot.
type moneySampler struct {
	stop   context.CancelFunc
	done   errgroup.Group
	looks  int
	most   loop.USD // ever spent and held
	faults []string
}

// What the budget says, and what the calls of all runs cost or may cost.
const sampleBudget = `SELECT s.committed_pico + s.held_pico, a.committed_pico + a.held_pico, a.excess_pico,
	(SELECT coalesce(sum(coalesce(settled_pico, amount_pico)), 0)::bigint FROM holds)
	FROM budget_standing s JOIN budget_accounts a USING (tenant_id, budget_id, starts_at)`

func sample(t *testing.T, db *pgxpool.Pool, limit loop.USD) *moneySampler {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &moneySampler{stop: stop}
	s.done.Go(func() error {
		for ctx.Err() == nil {
			var standing, drawn, excess, truth loop.USD
			if err := db.QueryRow(ctx, sampleBudget).Scan(&standing, &drawn, &excess, &truth); err != nil {
				if ctx.Err() == nil {
					return err
				}
				break
			}
			s.looks++
			s.most = max(s.most, standing)
			if standing > limit || drawn > limit || truth > limit || excess != 0 {
				s.faults = append(s.faults, fmt.Sprintf("spent and held %s USD, drawn %s, truly %s, excess %s", standing, drawn, truth, excess))
			}
		}
		return nil
	})
	return s
}

// noonZone is a time zone in which no day ends during the test.
func noonZone() string { return fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12) }

// Fifty runs at once on a budget of one dollar a day, with a power cut in the middle. At
// no instant is more than the dollar spent and held, and in the end the budget knows of
// every cent.
func TestBudgetHoldsFiftyRuns(t *testing.T) {
	t.Parallel()
	url, model, tools := pgURL(t), newSlowModel(t), newShop(t)
	db := connect(t, url)
	dir := files(t, map[string]string{
		"providers.yaml": "providers: {slow: {kind: openai, base_url: \"" + model.URL + "/v1\"}}\n", "prices.json": slowPrices,
	})
	flags := []string{"--providers", filepath.Join(dir, "providers.yaml"), "--prices", filepath.Join(dir, "prices.json")}
	first := start(t, url, noScript, flags...)
	_, err := first.agents.UpdateAgent(first.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{
		Name: "agents/talker", Spec: &loopdv1.AgentSpec{Model: "slow/talker", Tools: []*loopdv1.Tool{tools.tool("look", "look", readOnly)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	first.ask(http.MethodPost, "/v1/budgets?budgetId=daily", `{"window": "BUDGET_WINDOW_DAY", "timeZone": "`+noonZone()+`", "amountUsd": "1.00"}`, &loopdv1.Budget{})
	sampler := sample(t, db, loop.OneUSD)

	var mu sync.Mutex
	var names []string
	refused := 0
	var creating errgroup.Group
	for range 50 {
		creating.Go(func() error {
			run, err := first.runs.CreateRun(first.context, &loopdv1.CreateRunRequest{Agent: "agents/talker", Input: "What is there?"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				names = append(names, run.GetName())
			case status.Code(err) == codes.ResourceExhausted:
				refused++
			default:
				return err
			}
			return nil
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-model.many:
	case <-time.After(patience):
		t.Fatal("the model is hardly asked")
	}
	first.kill()
	second := start(t, url, noScript, flags...)

	ends := map[string]int{}
	for _, name := range names {
		run := second.waitEnd(name)
		ends[run.GetStop().GetReason().String()]++
	}
	sampler.stop()
	if err := sampler.done.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d refused at admission, ends %v; %d samples, at most %s USD spent and held; the model was asked %d times",
		refused, ends, sampler.looks, sampler.most, model.asked)
	for _, fault := range sampler.faults[:min(5, len(sampler.faults))] {
		t.Error(fault)
	}
	if sampler.looks < 50 || sampler.most < loop.OneUSD*9/10 {
		t.Errorf("%d samples, at most %s USD: the budget was not put to the test", sampler.looks, sampler.most)
	}
	if refused+ends["STOP_REASON_ACCOUNT_BUDGET"] == 0 {
		t.Errorf("nobody was refused: %v", ends)
	}
	checkBooks(t, db, model)
}

// checkBooks compares the budget with the runs' own costs and the provider's bill.
func checkBooks(t *testing.T, db *pgxpool.Pool, model *slowModel) {
	t.Helper()
	var spent, held, runs, holds loop.USD
	err := db.QueryRow(t.Context(), `SELECT committed_pico, held_pico, (SELECT sum(cost_pico)::bigint FROM runs),
		(SELECT sum(settled_pico)::bigint FROM holds) FROM budget_standing`).Scan(&spent, &held, &runs, &holds)
	if err != nil {
		t.Fatal(err)
	}
	model.mu.Lock()
	defer model.mu.Unlock()
	if held != 0 || spent != runs || spent != holds || spent < model.bill {
		t.Errorf("the budget has %s USD spent and %s held; the runs cost %s, their calls %s, the provider's bill is %s", spent, held, runs, holds, model.bill)
	}
}
