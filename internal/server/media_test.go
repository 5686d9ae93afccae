package server_test

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

func dataOf(mediaType string, data []byte) *loopdv1.Attachment {
	return &loopdv1.Attachment{Source: &loopdv1.Attachment_Data{Data: data}, MediaType: mediaType}
}

func uriOf(mediaType, uri string) *loopdv1.Attachment {
	return &loopdv1.Attachment{Source: &loopdv1.Attachment_Uri{Uri: uri}, MediaType: mediaType}
}

// TestAttachmentsOverREST: the largest that is allowed comes in as base64, reaches the
// worker byte for byte, and is shown everywhere by its size only.
func TestAttachmentsOverREST(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	image := bytes.Repeat([]byte{0x89, 'P', 'N', 'G', 0, 0xff, '<', '"'}, 1<<20-1) // 8 MiB less 8 bytes
	encoded := base64.StdEncoding.EncodeToString(image)
	created := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "What is\u0000 this?", "attachments": [
		{"mediaType": "image/png", "fileName": "box.png", "data": "`+encoded+`"},
		{"mediaType": "application/pdf", "uri": "https://shop.example/terms.pdf"},
		{"mediaType": "text/plain", "data": "bm90ZQ=="}]}`)
	name := created["name"].(string)

	pinned, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(name, "runs/")})
	if err != nil {
		t.Fatal(err)
	}
	want := []loop.Part{
		{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Name: "box.png", Data: image}},
		{Kind: loop.PartDocument, Media: &loop.Media{Type: "application/pdf", URL: "https://shop.example/terms.pdf"}},
		{Kind: loop.PartDocument, Media: &loop.Media{Type: "text/plain", Data: []byte("note")}},
	}
	if diff := cmp.Diff(want, pinned.Attachments, cmp.Comparer(bytes.Equal)); diff != "" {
		t.Errorf("what the worker gets (-want +got):\n%s", diff)
	}

	messages, err := w.runs.ListMessages(t.Context(), &loopdv1.ListMessagesRequest{Parent: name})
	if err != nil {
		t.Fatal(err)
	}
	parts := []*loopdv1.Part{
		{Kind: &loopdv1.Part_Image{Image: &loopdv1.Media{MediaType: "image/png", FileName: "box.png", SizeBytes: int64(len(image))}}},
		{Kind: &loopdv1.Part_Document{Document: &loopdv1.Media{MediaType: "application/pdf", Uri: "https://shop.example/terms.pdf"}}},
		{Kind: &loopdv1.Part_Document{Document: &loopdv1.Media{MediaType: "text/plain", SizeBytes: 4}}},
		{Kind: &loopdv1.Part_Text{Text: &loopdv1.Text{Text: "What is\x00 this?"}}},
	}
	if diff := cmp.Diff(parts, messages.GetMessages()[0].GetParts(), protocmp.Transform()); diff != "" {
		t.Errorf("the input's parts (-want +got):\n%s", diff)
	}
	w.same(messages, http.MethodGet, "/v1/"+name+"/messages")

	wantShown := []any{
		map[string]any{"kind": "image", "media": map[string]any{"type": "image/png", "name": "box.png", "size_bytes": float64(len(image))}},
		map[string]any{"kind": "document", "media": map[string]any{"type": "application/pdf", "url": "https://shop.example/terms.pdf"}},
		map[string]any{"kind": "document", "media": map[string]any{"type": "text/plain", "size_bytes": 4.0}},
	}
	page := w.rest(http.MethodGet, "/v1/"+name+"/events", "")
	if diff := cmp.Diff(wantShown, at(page, "events", "0", "body", "spec", "attachments")); diff != "" {
		t.Errorf("the first event (-want +got):\n%s", diff)
	}
	_, read := w.follow("/v1/"+name+"/events", "Accept", "text/event-stream")
	_, _ = read() // the ping
	f, _ := read()
	if diff := cmp.Diff(wantShown, at(decode(t, []byte(f.data)), "body", "spec", "attachments")); diff != "" {
		t.Errorf("the first event of the stream (-want +got):\n%s", diff)
	}
}

func TestAttachmentsAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agents := map[string]string{}
	for id, spec := range map[string]*loopdv1.AgentSpec{
		"sees": {Model: model}, "reads": {Model: "acme/reader-1"}, "falls": {Model: model, FallbackModels: []string{fallback}},
	} {
		agents[id] = w.agent(id, spec)
	}
	for name, c := range map[string]struct {
		agent       string
		attachments []*loopdv1.Attachment
		says        string // "": it is accepted
	}{
		"image":                      {"sees", []*loopdv1.Attachment{uriOf("image/gif", "https://a.example/b")}, ""},
		"image, also for a fallback": {"falls", []*loopdv1.Attachment{dataOf("image/jpeg", []byte("x"))}, ""},
		"exactly 8 MiB":              {"sees", []*loopdv1.Attachment{dataOf("image/jpeg", make([]byte, 4<<20)), dataOf("image/jpeg", make([]byte, 4<<20))}, ""},
		"one byte more":              {"sees", []*loopdv1.Attachment{dataOf("image/jpeg", make([]byte, 4<<20)), dataOf("image/jpeg", make([]byte, 4<<20+1))}, "attachments: they have 8388609 bytes"},
		"blind model":                {"reads", []*loopdv1.Attachment{dataOf("image/png", []byte("x"))}, "attachments[0]: model acme/reader-1 is not known to read images"},
		"fallback reads no document": {"falls", []*loopdv1.Attachment{dataOf("image/png", []byte("x")), dataOf("application/pdf", []byte("x"))}, "attachments[1]: model acme/backup-1 is not known to read documents"},
		"text that is none":          {"sees", []*loopdv1.Attachment{dataOf("text/plain", []byte{0xff})}, "attachments[0].data: text/plain must be UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: agents[c.agent], Input: "x", Attachments: c.attachments})
			got := status.Convert(err).Message()
			if (err == nil) != (c.says == "") || !strings.HasPrefix(got, c.says) {
				t.Errorf("got %q, want %q", got, c.says)
			}
		})
	}
}

// TestAttachmentsArePartOfTheRequest that a request id stands for.
func TestAttachmentsArePartOfTheRequest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())
	create := func(data string) (*loopdv1.Run, error) {
		return w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{
			Agent: agent, Input: "x", RequestId: "r1", Attachments: []*loopdv1.Attachment{dataOf("image/png", []byte(data))},
		})
	}
	first, err := create("a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := create("a")
	if err != nil || again.GetName() != first.GetName() {
		t.Errorf("the same request made %v, %v", again, err)
	}
	if _, err := create("b"); !strings.Contains(status.Convert(err).Message(), "request id") {
		t.Errorf("another attachment under the same id: %v", err)
	}
}

func TestReasoningAndFallbacksArePinned(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.FallbackModels = []string{fallback, "acme/reader-1"}
	spec.ModelSettings = &loopdv1.ModelSettings{Reasoning: &loopdv1.ReasoningSettings{Effort: "high", BudgetTokens: proto.Int64(2048)}}
	agent := w.agent("support", spec)
	shown, err := w.agents.GetAgent(t.Context(), &loopdv1.GetAgentRequest{Name: agent})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, shown.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("the definition changed (-sent +stored):\n%s", diff)
	}

	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := w.store.GetSpec(t.Context(), refOf(run))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := prices(fallback)
	second, _ := prices("acme/reader-1")
	if diff := cmp.Diff([]loop.Price{first, second}, pinned.FallbackPrices); diff != "" {
		t.Errorf("prices of the fallbacks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(spec.GetFallbackModels(), pinned.Definition.Fallbacks); diff != "" {
		t.Errorf("fallbacks (-want +got):\n%s", diff)
	}
	if want := (loop.Reasoning{Effort: "high", Budget: 2048}); pinned.Definition.Reasoning != want {
		t.Errorf("reasoning is %+v, want %+v", pinned.Definition.Reasoning, want)
	}
}

// TestAFallbackThatLostItsPrice since the agent was made starts no run.
func TestAFallbackThatLostItsPrice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	_, err := w.store.CreateAgent(t.Context(), postgres.Agent{
		Tenant: tenant, ID: "old", Spec: []byte(`{"model": "acme/large-1", "fallback_models": ["acme/backup-1", "acme/gone-1"]}`),
	}, postgres.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	resp, body := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/old", "input": "x"}`)
	p := decode(t, body)
	if p["reason"] != "MODEL_UNPRICED" || at(p, "errors", "0", "field") != "agent.spec.fallback_models[1]" || at(p, "metadata", "model") != "acme/gone-1" {
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
}

// TestWaitsForAModelAreShown: falling back and waiting for a rate limit are events of
// the answer that they delay.
func TestWaitsForAModelAreShown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.FallbackModels = []string{fallback}
	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: w.agent("support", spec), Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	k := w.claim()
	k.append(loop.ModelStarted{Call: 1, Model: model, MaxOutput: 10, InputBound: 10, Hold: 1})
	k.append(loop.ModelFailed{Call: 1, Class: loop.ErrorQuota},
		loop.FellBack{From: model, To: fallback, Class: loop.ErrorQuota, Message: "no credit"},
		loop.RateWaited{Provider: "acme"})

	shown, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()})
	if err != nil || shown.GetPhase() != "rate" {
		t.Errorf("the phase is %q, %v; want rate", shown.GetPhase(), err)
	}
	page := w.rest(http.MethodGet, "/v1/"+run.GetName()+"/events?after_seq=4", "")
	for i, kind := range []string{"fell_back", "rate_waited"} {
		event := at(page, "events", string(rune('0'+i))).(map[string]any)
		if event["kind"] != kind || event["iteration"] != 1.0 {
			t.Errorf("event %d is %v, want %s in iteration 1", i, event, kind)
		}
	}
	if at(page, "events", "0", "body", "to") != fallback || at(page, "events", "1", "body", "provider") != "acme" {
		t.Errorf("the events are %v", page)
	}
}
