package openai_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/openai"
)

// TestUsageCases: an independent project makes the same of every shape of usage.
func TestUsageCases(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/usage-cases.jsonl")
	if err != nil {
		t.Fatalf("read cases: %v", err)
	}
	lines, n := bufio.NewScanner(bytes.NewReader(raw)), 0
	for ; lines.Scan(); n++ {
		var c struct {
			Model    string          `json:"model"`
			Usage    json.RawMessage `json:"usage"`
			Expected struct {
				Input     int64 `json:"input_tokens"`
				Read      int64 `json:"cache_read_tokens"`
				Write     int64 `json:"cache_write_tokens"`
				Output    int64 `json:"output_tokens"`
				Reasoning int64 `json:"output_reasoning_tokens"`
			} `json:"expected"`
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("case %d: %v", n+1, err)
		}
		e := c.Expected
		want := loop.Usage{
			InputUncached: e.Input - e.Read - e.Write, CacheRead: e.Read, CacheWrite5m: e.Write, Output: e.Output - e.Reasoning, Reasoning: e.Reasoning,
		}
		got, complete := openai.Usage(c.Usage)
		if diff := cmp.Diff(want, got); diff != "" || !complete {
			t.Errorf("%s: complete %v, usage %s (-want +got):\n%s", c.Model, complete, c.Usage, diff)
		}
	}
	if n < 20 {
		t.Errorf("only %d cases", n)
	}
}

// TestUsageIsTheAnswers: the exported function and an answer count alike.
func TestUsageIsTheAnswers(t *testing.T) {
	t.Parallel()
	const usage = `{"prompt_tokens":100,"completion_tokens":5,"total_tokens":112,"num_cached_tokens":60}`
	answer, err := generate(t, http.StatusOK, `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"ok"}}],"usage":`+usage+`}`)
	got, complete := openai.Usage(json.RawMessage(usage))
	want := loop.Usage{InputUncached: 40, CacheRead: 60, Output: 5, Reasoning: 7}
	if err != nil || !complete || answer.UsageMissing || got != want || answer.Usage != want {
		t.Errorf("answer %+v, function %+v, complete %v, error %v", answer.Usage, got, complete, err)
	}
}

// TestUsagePlaces: where servers put the usage in a stream.
func TestUsagePlaces(t *testing.T) {
	t.Parallel()
	const text = `data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}` + "\n\n"
	const done = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	const usage = `{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}`
	for name, body := range map[string]string{
		"last chunk":                   text + done + `data: {"choices":[],"usage":` + usage + "}\n\n",
		"last chunk without choices":   text + done + `data: {"usage":` + usage + "}\n\n",
		"with the reason":              text + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":` + usage + "}\n\n",
		"x_groq":                       text + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"usage":` + usage + "}}\n\n",
		"in the choice":                text + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":` + usage + "}]}\n\n",
		"counting on":                  `data: {"choices":[{"index":0,"delta":{"content":"o"}}],"usage":{"prompt_tokens":3,"completion_tokens":0}}` + "\n\n" + text + done + `data: {"choices":[],"usage":` + usage + "}\n\n",
		"an empty one after the whole": text + done + `data: {"choices":[],"usage":` + usage + "}\n\n" + `data: {"choices":[],"usage":{}}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, body+"data: [DONE]\n\n")
			if want := (loop.Usage{InputUncached: 3, Output: 1}); err != nil || answer.Usage != want || answer.UsageMissing {
				t.Errorf("usage %+v, missing %v, error %v", answer.Usage, answer.UsageMissing, err)
			}
		})
	}
}

// TestFullAnswer: an answer of exactly the allowed length was cut, whatever the server says.
func TestFullAnswer(t *testing.T) {
	t.Parallel()
	call := `"tool_calls":[{"id":"1","function":{"name":"a","arguments":"{}"}}]`
	for _, c := range []struct {
		name, message, reason, usage string
		want                         loop.Finish
	}{
		{"calls", call, "tool_calls", `{"prompt_tokens":3,"completion_tokens":1024}`, loop.FinishTruncated},
		{"text", `"content":"ok"`, "stop", `{"prompt_tokens":3,"completion_tokens":1024}`, loop.FinishTruncated},
		{"one less", call, "tool_calls", `{"prompt_tokens":3,"completion_tokens":1023}`, loop.FinishToolCalls},
		{"reasoning beside", call, "tool_calls", `{"prompt_tokens":3,"completion_tokens":1024,"total_tokens":1100}`, loop.FinishTruncated},
		{"refusal", `"refusal":"no"`, "stop", `{"prompt_tokens":3,"completion_tokens":1024}`, loop.FinishRefused},
	} {
		answer, err := generate(t, http.StatusOK, `{"choices":[{"index":0,"finish_reason":"`+c.reason+`","message":{`+c.message+`}}],"usage":`+c.usage+`}`)
		if err != nil || answer.Finish != c.want {
			t.Errorf("%s: finish %q, error %v; want %q", c.name, answer.Finish, err, c.want)
		}
	}
}
