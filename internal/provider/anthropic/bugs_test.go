package anthropic_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// What went wrong in other systems on this wire. The list of all is BUGS.md of
// internal/loop.

// Case 27, BerriAI/litellm 9812: input 3, write 12,304, output 550 is billed as 0.0913
// USD, with the tokens written to the cache counted as input too. It costs 0.0544.
func TestBug27CacheWritesAreBilledOnce(t *testing.T) {
	t.Parallel()
	stream := `data: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":3,"cache_creation_input_tokens":12304,` +
		`"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":12304,"ephemeral_1h_input_tokens":0},"output_tokens":1}}}` + "\n\n" +
		`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"ok"}}` + "\n\n" +
		ending(`"end_turn"`, `{"output_tokens":550}`)
	answer, err := generate(t, stream)
	want := loop.Usage{InputUncached: 3, CacheWrite5m: 12_304, Output: 550}
	if err != nil || answer.Usage != want || answer.UsageMissing {
		t.Fatalf("usage %+v, error %v; want %+v", answer.Usage, err, want)
	}
	sonnet := loop.Price{Rates: loop.Rates{
		Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD, CacheWrite1h: 6 * loop.MicroUSD, Output: 15 * loop.MicroUSD,
	}}
	cost := sonnet.Cost(answer.Usage)
	if got := fmt.Sprint(cost.Input, cost.CacheWrite, cost.Output, cost.Total()); got != "0.000009 0.04614 0.00825 0.054399" {
		t.Errorf("input, writes, output and all cost %s USD", got)
	}
}

// Case 33, mattmezza/humux 77, can1357/oh-my-pi 11104: an answer that was cut in the middle
// of a call's arguments stays in the conversation as it came, and every request after it
// is a 400. Here the call goes back with an object, and its result says that it did not run.
func TestBug33CutArgumentsStayValid(t *testing.T) {
	t.Parallel()
	answer, err := generate(t, start+toolUse(0, `{"text":"once upo`)+ending(`"max_tokens"`, `{"output_tokens":9}`))
	if err != nil || answer.Finish != loop.FinishTruncated || answer.Message.Calls()[0].Args != `{"text":"once upo` {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	answer.Message.Parts[0].Call.ID = "c1-1"
	for name, native := range map[string]*loop.Native{"as it came": answer.Message.Native, "as others see it": nil} {
		message := answer.Message
		message.Model, message.Native = "anthropic/claude-sonnet-4-5", native
		req := transcript()
		req.Messages = []loop.Message{user(loop.TextPart("Write.")), message, user(result("c1-1", "toolu_0", loop.OutcomeSkipped, "The call did not run."))}
		var body struct {
			Messages []struct {
				Content []struct {
					Type, ID  string
					Input     map[string]any
					ToolUseID string `json:"tool_use_id"`
					IsError   bool   `json:"is_error"`
				}
			}
		}
		if err := json.Unmarshal(sent(t, req).Body, &body); err != nil || len(body.Messages) != 3 {
			t.Fatalf("%s: %d messages, error %v", name, len(body.Messages), err)
		}
		call, answered := body.Messages[1].Content[0], body.Messages[2].Content[0]
		if call.Type != "tool_use" || call.Input == nil || len(call.Input) != 0 {
			t.Errorf("%s: the call goes back as %+v", name, call)
		}
		if answered.ToolUseID != call.ID || !answered.IsError {
			t.Errorf("%s: the result %+v does not answer %q as an error", name, answered, call.ID)
		}
	}
}

// Case 37, oguzbilgic/kern-ai 317: a breakpoint on a message with three results becomes one
// on each of them, five in all, and every request is a 400. dhanji/g3 77: at the thirtieth
// result the breakpoints stand still, and what comes after is never cached. Here marks are
// counted as the wire counts, and slide.
func TestBug37Breakpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ iterations, parallel int }{{2, 3}, {10, 3}, {40, 1}, {12, 30}} {
		cache, before := promptCache{}, 0
		for n, req := range script(c.iterations, c.parallel) {
			body := sent(t, req).Body
			blocks := wireBlocks(t, body)
			if marks := strings.Count(string(body), `"cache_control"`); marks > 4 || marks < 3 {
				t.Errorf("%d calls, iteration %d: %d breakpoints", c.parallel, n+1, marks)
			}
			results := blocks[max(0, len(blocks)-c.parallel):]
			for i, b := range results {
				if last := i == len(results)-1; last && !b.marked || c.parallel <= 3 && !last && b.marked && n > 0 {
					t.Errorf("%d calls, iteration %d: result %d of %d is marked: %v", c.parallel, n+1, i+1, len(results), b.marked)
				}
			}
			if hit := cache.send(blocks); hit != before {
				t.Errorf("%d calls, iteration %d: %d blocks come out of the cache, want all %d that were sent before", c.parallel, n+1, hit, before)
			}
			before = len(blocks)
		}
	}
}
