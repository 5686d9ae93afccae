package anthropic_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// script is a run as it grows: the request of each iteration, with parallel calls
// in each, a guard's nudge after some, and thinking in all.
func script(iterations, parallel int) []loop.ModelRequest {
	req := transcript()
	req.Messages = nil
	add := func(m loop.Message) {
		m.Seq = int64(len(req.Messages) + 1)
		req.Messages = append(req.Messages, m)
	}
	add(user(loop.TextPart("Find it & <report> it.")))
	requests := []loop.ModelRequest{req}
	for n := 1; n < iterations; n++ {
		m := loop.Message{Role: loop.RoleAssistant, Model: "anthropic/claude-sonnet-4-5"}
		native := []string{fmt.Sprintf(`{"type":"thinking","thinking":"%d","signature":"s%d=="}`, n, n)}
		var results []loop.Part
		for i := range parallel {
			id := fmt.Sprintf("toolu_%d_%d", n, i)
			m.Parts = append(m.Parts, call(fmt.Sprintf("c%d-%d", n, i), id, "add", `{}`))
			native = append(native, fmt.Sprintf(`{"type":"tool_use","id":%q,"name":"add","input":{"\\\"}]":[{}]}}`, id))
			results = append(results, result(fmt.Sprintf("c%d-%d", n, i), id, loop.OutcomeOK, fmt.Sprintf(`{"n":[%d,"}]\"{"]}`, i)))
		}
		m.Native = &loop.Native{Wire: "anthropic", JSON: json.RawMessage("[" + strings.Join(native, ",") + "]")}
		add(m)
		add(user(results...))
		if n%3 == 0 {
			add(user(loop.TextPart("You did that before.")))
		}
		requests = append(requests, req)
	}
	return requests
}

// prompt is the part of a request that the prompt cache reads, without marks.
func prompt(t *testing.T, body []byte) string {
	t.Helper()
	_, after, found := strings.Cut(string(body), `"tools":`)
	if !found || !json.Valid(body) {
		t.Fatalf("request is %s", body)
	}
	return strings.TrimSuffix(strings.ReplaceAll(after, `,"cache_control":{"type":"ephemeral"}`, ""), "]}")
}

// TestPrefix: what the next request adds stands behind what this one sent, byte
// for byte, and the memo changes nothing.
func TestPrefix(t *testing.T) {
	t.Parallel()
	memo := &loop.Memo{}
	var before string
	for n, req := range script(12, 3) {
		plain := sent(t, req).Body
		req.Memo = memo
		if diff := cmp.Diff(string(plain), string(sent(t, req).Body)); diff != "" {
			t.Fatalf("iteration %d: the memo changes the request (-without +with):\n%s", n+1, diff)
		}
		now := prompt(t, plain)
		if !strings.HasPrefix(now, before) {
			t.Fatalf("iteration %d does not begin with the request before it:\n%s\n%s", n+1, before, now)
		}
		before = now
	}
	if memo.Value == nil {
		t.Error("nothing was remembered")
	}
}

// wireBlock is what the prompt cache counts: a tool, or a block of the system
// prompt or of a message.
type wireBlock struct {
	where  string
	text   string
	marked bool
}

func wireBlocks(t *testing.T, body []byte) (blocks []wireBlock) {
	t.Helper()
	var r struct {
		Tools    []map[string]any
		System   []map[string]any
		Messages []struct {
			Role    string
			Content []map[string]any
		}
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("request: %v", err)
	}
	add := func(where string, list []map[string]any) {
		for _, b := range list {
			_, marked := b["cache_control"]
			delete(b, "cache_control")
			text, err := json.Marshal(b)
			if err != nil {
				t.Fatalf("block: %v", err)
			}
			blocks = append(blocks, wireBlock{where: where, text: string(text), marked: marked})
		}
	}
	add("tool", r.Tools)
	add("system", r.System)
	for _, m := range r.Messages {
		add(m.Role, m.Content)
	}
	return blocks
}

// promptCache does as the API documents: an entry is written at each breakpoint,
// and from each breakpoint the API goes back at most 20 blocks to find one.
type promptCache map[string]bool

func (c promptCache) send(blocks []wireBlock) (hit int) {
	const lookBack = 20
	keys := make([]string, len(blocks))
	hash := sha256.New()
	for i, b := range blocks {
		fmt.Fprintf(hash, "%s %s\n", b.where, b.text)
		keys[i] = string(hash.Sum(nil))
	}
	for i, b := range blocks {
		for j := i; b.marked && j >= 0 && j > i-lookBack; j-- {
			if c[keys[j]] {
				hit = max(hit, j+1)
				break
			}
		}
	}
	for i, b := range blocks {
		if b.marked {
			c[keys[i]] = true
		}
	}
	return hit
}

// TestCacheIsFound: each request finds all that the one before it sent, however
// many parallel calls one iteration makes.
func TestCacheIsFound(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{1, 3, 25, 60} {
		for _, c := range []struct {
			name string
			trim func(*loop.ModelRequest)
		}{
			{"tools and system", func(*loop.ModelRequest) {}},
			{"tools", func(r *loop.ModelRequest) { r.Instructions = "" }},
			{"system", func(r *loop.ModelRequest) { r.Tools = nil }},
			{"neither", func(r *loop.ModelRequest) { r.Tools, r.Instructions = nil, "" }},
		} {
			t.Run(fmt.Sprintf("%s, %d calls", c.name, parallel), func(t *testing.T) {
				t.Parallel()
				cache, before := promptCache{}, 0
				for n, req := range script(5, parallel) {
					c.trim(&req)
					blocks := wireBlocks(t, sent(t, req).Body)
					if hit := cache.send(blocks); hit != before {
						t.Errorf("iteration %d found %d blocks, want the %d that were sent before", n+1, hit, before)
					}
					before = len(blocks)
				}
			})
		}
	}
}

// TestMarks: at most four, counted as the wire counts, and each in its place. A
// place is counted from the end of the request, from 1.
func TestMarks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		instructions      string
		tools             bool
		calls, iterations int
		want              []string
	}{
		{"first request", "Be brief.", true, 1, 1, []string{"tool 3", "system 2", "user 1"}},
		{"both ends slide", "Be brief.", true, 1, 3, []string{"tool 9", "system 8", "user 4", "user 1"}},
		{"many calls, none to spare", "Be brief.", true, 30, 2, []string{"tool 64", "system 63", "user 62", "user 1"}},
		{"few calls, one to spare", "Be brief.", false, 5, 2, []string{"system 13", "user 12", "user 1"}},
		{"many calls, one to spare", "Be brief.", false, 30, 2, []string{"system 63", "user 62", "user 19", "user 1"}},
		{"many calls, two to spare", " ", false, 50, 2, []string{"user 102", "user 37", "user 19", "user 1"}},
		{"the spare one stands where our blocks begin", " ", false, 12, 2, []string{"user 26", "user 12", "user 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			requests := script(c.iterations, c.calls)
			req := requests[len(requests)-1]
			req.Instructions = c.instructions
			if !c.tools {
				req.Tools = nil
			}
			blocks := wireBlocks(t, sent(t, req).Body)
			var got []string
			for i, b := range blocks {
				if b.marked {
					got = append(got, fmt.Sprintf("%s %d", b.where, len(blocks)-i))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
		})
	}
}
