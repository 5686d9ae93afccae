package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	benchResultSize = 3000 // characters that the tool returns
	benchAnswerSize = 200  // characters that the model says, besides its call
	benchTexts      = 64   // different ones of each
)

// benchPeer is the model and the tool of `loopd bench`, and its judge: it sees when each
// model call of a run comes. It knows nothing of a run but what the request says. It is
// safe for concurrent use.
type benchPeer struct {
	mux        *http.ServeMux
	iterations int
	latency    time.Duration
	texts      []string
	results    []string

	mu     sync.Mutex
	runs   map[string]*benchRun
	gaps   []time.Duration // between two model calls of one run, without the model's latency
	starts []time.Duration // from before a run's create to its first model call
	from   []time.Time     // when each of these runs was about to be created
}

// benchRun is what the peer knows of one run.
type benchRun struct {
	created, called time.Time
}

// newBenchPeer makes a model that ends a run with its last iteration.
func newBenchPeer(iterations int, latency time.Duration) *benchPeer {
	p := &benchPeer{mux: http.NewServeMux(), iterations: iterations, latency: latency, runs: map[string]*benchRun{}}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // text, not a secret
	for range benchTexts {
		p.texts = append(p.texts, benchText(random, benchAnswerSize))
		p.results = append(p.results, benchText(random, benchResultSize))
	}
	p.mux.HandleFunc("POST /v1/chat/completions", p.chat)
	p.mux.HandleFunc("POST /tool", p.tool)
	return p
}

// ServeHTTP answers the calls of the model and of the tool.
func (p *benchPeer) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// expect notes that a run is about to be created. Its input must say "run=ID".
func (p *benchPeer) expect(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[id] = &benchRun{created: time.Now()}
}

// take returns what was seen since it was last asked.
func (p *benchPeer) take() (gaps, starts []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gaps, starts = p.gaps, p.starts
	p.gaps, p.starts, p.from, p.runs = nil, nil, nil, map[string]*benchRun{}
	return gaps, starts
}

// slowest are the longest starts since they were last taken: how long, and when each was
// asked for, counted from a time.
func (p *benchPeer) slowest(n int, since time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	order := make([]int, len(p.starts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(p.starts[b], p.starts[a]) })
	var all []string
	for _, i := range order[:min(n, len(order))] {
		all = append(all, fmt.Sprintf("%d ms at %.1f s", p.starts[i].Milliseconds(), p.from[i].Sub(since).Seconds()))
	}
	return all
}

// called notes a model call of a run.
func (p *benchPeer) called(id string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.runs[id]
	switch {
	case r == nil: // of somebody who does not say when a run begins
		r = &benchRun{}
		p.runs[id] = r
	case r.called.IsZero():
		p.starts, p.from = append(p.starts, at.Sub(r.created)), append(p.from, r.created)
	default:
		p.gaps = append(p.gaps, at.Sub(r.called)-p.latency)
	}
	r.called = at
}

// chat is a Chat Completions server that streams to those who ask for it. The iteration is in the request: it
// has the answers so far.
func (p *benchPeer) chat(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body := make([]byte, max(0, r.ContentLength)) // all who ask say how long it is
	_, err := io.ReadFull(r.Body, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, rest, _ := bytes.Cut(body, []byte("run="))
	id, _, _ := bytes.Cut(rest, []byte(" "))
	iteration := bytes.Count(body, []byte(`"role":"assistant"`)) + 1
	p.called(string(id), at)
	if p.latency > 0 {
		select {
		case <-time.After(p.latency):
		case <-r.Context().Done():
			return
		}
	}
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":90,"total_tokens":%d}`, len(body)/4, len(body)/4+90)
	text, finish, call := p.texts[(iteration*31+len(body))%benchTexts], "stop", ""
	if iteration < p.iterations {
		arguments := fmt.Sprintf(`{"run":"%s","step":%d,"query":"%s"}`, id, iteration, text[:60])
		call = fmt.Sprintf(`,"tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":"lookup","arguments":%s}}]`, iteration, strconv.Quote(arguments))
		finish = "tool_calls"
	}
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"%s"%s},"finish_reason":"%s"}],%s}`,
			text, call, finish, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"role":"assistant","content":"%s"%s},"finish_reason":null}]}`+"\n\n", text, call)
	_, _ = fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"%s"}],%s}`+
		"\n\ndata: [DONE]\n\n", finish, usage)
}

// tool answers a call with a text that no other iteration of the run gets.
func (p *benchPeer) tool(w http.ResponseWriter, r *http.Request) {
	var arguments struct {
		Run  string `json:"run"`
		Step int    `json:"step"`
	}
	if err := json.NewDecoder(r.Body).Decode(&arguments); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	// A guard ends a run in which nothing is new.
	step := strconv.Itoa(arguments.Step) + " "
	_, _ = io.WriteString(w, step+p.results[(arguments.Step*37+len(arguments.Run))%benchTexts][len(step):])
}

// benchText makes words that hardly compress, as no real text does worse.
func benchText(random *rand.Rand, size int) string {
	var b strings.Builder
	for b.Len() < size {
		for range 2 + random.IntN(9) {
			b.WriteByte('a' + byte(random.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()[:size]
}
