package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// sse is one server-sent event. A comment is one of name "ping".
type sse struct {
	id, name string
	data     json.RawMessage
}

// delta is what the data of an event "delta" says.
type delta struct {
	ModelCall int  `json:"modelCall"`
	Gap       bool `json:"gap"`
	Fragments []struct{ Kind, Text, Tool string }
}

func (e sse) delta(t *testing.T) (d delta) {
	t.Helper()
	if err := json.Unmarshal(e.data, &d); err != nil {
		t.Fatalf("delta %s: %v", e.data, err)
	}
	return d
}

// follow opens the run's event stream with deltas, after the event of an id if there
// is one, and reads its first frame: from then on nothing passes it by.
func (p *process) follow(run, lastEventID string) (next func() sse, stop func()) {
	p.t.Helper()
	ctx, stop := context.WithCancel(p.context)
	p.t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+"/v1/"+run+"/events?include_deltas=true", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	frames := bufio.NewScanner(resp.Body)
	frames.Buffer(nil, 1<<20)
	next = func() sse {
		p.t.Helper()
		var e sse
		for frames.Scan() {
			name, value, _ := strings.Cut(frames.Text(), ":")
			value = strings.TrimPrefix(value, " ")
			switch name {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = json.RawMessage(value)
			case "":
				if value != "" { // a comment
					e.name = "ping"
					continue
				}
				return e
			}
		}
		p.t.Fatalf("the stream ends with %v", frames.Err())
		return e
	}
	if first := next(); first.name != "ping" {
		p.t.Fatalf("the stream begins with %q", first.name)
	}
	return next, stop
}

// watcher is what one client has seen of a run.
type watcher struct {
	next   func() sse
	stop   func()
	events []string // "id name", without deltas
	last   string   // the last id
	writes []delta  // since the last event
	before map[string][]delta
}

// until reads until an event of the name has come. What was written before it is kept
// under its id.
func (w *watcher) until(t *testing.T, name string) {
	t.Helper()
	for {
		e := w.next()
		switch e.name {
		case "delta":
			if e.id != "" {
				t.Errorf("a delta has the id %q", e.id)
			}
			w.writes = append(w.writes, e.delta(t))
		case "ping", "end":
		default:
			w.events = append(w.events, e.id+" "+e.name)
			w.last = e.id
			w.before[e.id], w.writes = w.writes, nil
		}
		if e.name == name {
			return
		}
	}
}

const slowWords = `
models:
  worker:
    answers:
      - {text: "I look into it, which takes me some time.", calls: [{name: act, args: {n: 1}}], delay: 4s}
      - {reasoning: "It was sent today.", text: "Your parcel is on its way.", calls: [{name: act, args: {note: "the customer was told that it arrives on Friday before noon"}}], delay: 2s}
      - {text: "done"}
`

// What the model writes is seen word by word at both replicas, of which one drives the
// run, and leaves no trace in the journal. A client that connects again misses nothing.
func TestDeltasCrossReplicas(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	a, b := start(t, db, slowWords), start(t, db, slowWords)
	a.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	run := a.start("worker").GetName()
	watchers := map[*process]*watcher{}
	for _, p := range []*process{a, b} {
		w := &watcher{before: map[string][]delta{}}
		w.next, w.stop = p.follow(run, "")
		watchers[p] = w
	}
	for _, w := range watchers {
		w.until(t, "delta") // of the first answer: the worker has heard that it is watched
	}
	tools.next(t)
	again := watchers[b]
	again.until(t, "call_started")
	again.stop()
	again.next, again.stop = b.follow(run, again.last)
	close(tools.release)

	var journals [][]string
	for _, w := range watchers {
		w.until(t, "end")
		journals = append(journals, w.events)
		checkWritten(t, w)
	}
	want := []string{
		"1 created", "2 claimed", "3 model_started", "4 model_answered", "5 call_started", "6 call_finished",
		"7 model_started", "8 model_answered", "9 call_started", "10 call_finished",
		"11 model_started", "12 model_answered", "13 finished",
	}
	page, err := a.runs.ListEvents(a.context, &loopdv1.ListEventsRequest{Parent: run, PageSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	var journal []string
	for _, e := range page.GetEvents() {
		journal = append(journal, strconv.FormatInt(e.GetSeq(), 10)+" "+e.GetKind())
	}
	for _, got := range append(journals, journal) {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}

	late := &watcher{before: map[string][]delta{}}
	late.next, late.stop = b.follow(run, "7")
	late.until(t, "end")
	if diff := cmp.Diff(want[7:], late.events); diff != "" || late.before["8"] != nil {
		t.Errorf("after event 7 of an ended run: %v, events (-want +got):\n%s", late.before, diff)
	}
}

// checkWritten compares what was seen of the second answer with the whole. Its last
// words may come too late: then the event model_answered has gone before them.
func checkWritten(t *testing.T, w *watcher) {
	t.Helper()
	texts, tools := map[string]string{}, ""
	for _, d := range w.before["8"] { // between model_started and model_answered
		if d.Gap || d.ModelCall != 2 {
			t.Errorf("a delta of the second answer: %+v", d)
		}
		for _, f := range d.Fragments {
			texts[f.Kind] += f.Text
			tools += f.Tool
		}
	}
	const args = `{"note":"the customer was told that it arrives on Friday before noon"}`
	if got := texts["tool_call"]; !strings.HasPrefix(got, `{"note":"the `) || !strings.HasPrefix(args, got) || tools != "act" {
		t.Errorf("a call of %q with %s, want of act with the beginning of %s", tools, got, args)
	}
	delete(texts, "tool_call")
	if diff := cmp.Diff(map[string]string{"reasoning": "It was sent today.", "text": "Your parcel is on its way."}, texts); diff != "" {
		t.Errorf("the second answer (-want +got):\n%s", diff)
	}
	if n := len(w.before["8"]); n < 3 {
		t.Errorf("the second answer came in %d pieces, want it word by word", n)
	}
	for id, writes := range w.before {
		if id != "4" && id != "8" && id != "12" && len(writes) > 0 {
			t.Errorf("something was written before event %s, when no model was asked: %+v", id, writes)
		}
	}
}

// rest sends a request to the REST API and returns the status and the answer.
func (p *process) rest(method, path, body string) (status int, answer map[string]any) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.context, method, "http://"+p.http+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		p.t.Fatalf("%s %s: %v: %s", method, path, err, raw)
	}
	return resp.StatusCode, answer
}

const seesPictures = `
models:
  worker:
    answers:
      - text: "a box"
`

// An image goes from REST to the model, and no answer of the API has its data.
func TestAttachmentEndToEnd(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"box.png":        pngHeader + "secret pixels",
		"providers.yaml": "providers: {local: {kind: openai, base_url: \"http://127.0.0.1:9/v1\", prices: deepseek}}\n",
	})
	p := start(t, pgURL(t), seesPictures, "--providers", filepath.Join(dir, "providers.yaml"))
	p.agent("worker")
	image := base64.StdEncoding.EncodeToString([]byte(pngHeader + "secret pixels"))
	input := `"input": "What is this?", "attachments": [{"mediaType": "image/png", "fileName": "box.png", "data": "` + image + `"}]`

	status, created := p.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/worker", `+input+`}`)
	name, _ := created["name"].(string)
	if status != http.StatusOK || name == "" {
		t.Fatalf("%d %v", status, created)
	}
	if got := p.waitEnd(name); got.GetAnswer() != "a box" || got.GetUsage().GetCacheWriteTokens() < 500 {
		t.Errorf("answer %q, usage %v: the model did not get the image", got.GetAnswer(), got.GetUsage())
	}
	_, page := p.rest(http.MethodGet, "/v1/"+name+"/messages", "")
	want := []any{
		map[string]any{"image": map[string]any{"mediaType": "image/png", "fileName": "box.png", "uri": "", "sizeBytes": fmt.Sprint(len(pngHeader + "secret pixels"))}},
		map[string]any{"text": map[string]any{"text": "What is this?"}},
	}
	if diff := cmp.Diff(want, page["messages"].([]any)[0].(map[string]any)["parts"]); diff != "" {
		t.Errorf("the input's parts (-want +got):\n%s", diff)
	}
	for _, path := range []string{"", "/messages", "/events"} {
		_, shown := p.rest(http.MethodGet, "/v1/"+name+path, "")
		if text := fmt.Sprint(shown); strings.Contains(text, image) || strings.Contains(text, "secret pixels") {
			t.Errorf("%s shows the image's data: %s", path, text)
		}
	}

	var out, progress bytes.Buffer
	env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &progress, Stdin: strings.NewReader("")}
	line := []string{"run", "start", "--server", p.grpc, "--agent", "worker", "--input", "And this?", "--attach", filepath.Join(dir, "box.png"), "--wait", "-o", "json"}
	if code := run(t.Context(), line, env); code != exitOK || !strings.Contains(out.String(), `"answer": "a box"`) {
		t.Errorf("exit code %d\n%s%s", code, &out, &progress)
	}

	_, err := p.agents.UpdateAgent(p.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{
		Name: "agents/blind", Spec: &loopdv1.AgentSpec{Model: "local/deepseek-chat"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	status, refusal := p.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/blind", `+input+`}`)
	fields, _ := refusal["errors"].([]any)
	if status != http.StatusBadRequest || len(fields) != 1 || fields[0].(map[string]any)["field"] != "attachments[0]" {
		t.Errorf("a model that reads no images: %d %v", status, refusal)
	}
}
