package providertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// toy is an adapter for the smallest wire there is, with one fault if asked.
type toy struct {
	transport provider.Transport
	address   string
	fault     string
}

type toyEvent struct {
	Text  *string `json:"text"`
	Input int64   `json:"input"`
	End   string  `json:"end"`
	Error any     `json:"error"`
}

func (p toy) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	var body strings.Builder
	for _, m := range req.Messages {
		switch {
		case m.Native == nil:
			body.WriteString(m.Text())
		case p.fault == "replay":
			body.WriteString(`{"text": ` + m.Text() + `}`)
		case p.fault == "memo" && req.Memo != nil:
			body.WriteString("memo" + string(m.Native.JSON))
		default:
			body.Write(m.Native.JSON)
		}
	}
	header := http.Header{"X-Key": {providertest.Key}}
	resp, err := p.transport.Post(ctx, p.address, header, []byte(body.String()))
	if e, ok := errors.AsType[*loop.ModelError](err); ok && p.fault == "retry" && e.Class.Retryable() && ctx.Err() == nil {
		resp, err = p.transport.Post(ctx, p.address, header, []byte(body.String()))
	}
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	defer resp.Close()
	answer, err := p.read(resp, req.Emit)
	switch {
	case err == nil:
		return answer, nil
	case p.fault == "key":
		return loop.ModelAnswer{}, provider.WithUsage(err, answer.Usage)
	}
	return loop.ModelAnswer{}, resp.Fail(err, answer.Usage)
}

func (p toy) read(resp *provider.Response, emit func(loop.Delta)) (loop.ModelAnswer, error) {
	answer := loop.ModelAnswer{Rate: resp.Rate, Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}}
	if object, err := resp.IsObject(); err != nil {
		return answer, err
	} else if object {
		if raw, err := io.ReadAll(resp); err != nil {
			return answer, err
		} else {
			return answer, provider.ParseFault(raw).InBand(false)
		}
	}
	events, text := provider.NewEvents(resp.Reader), strings.Builder{}
	for answer.NativeFinish == "" {
		data, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) && p.fault == "cut" && text.Len() > 0:
			answer.NativeFinish = "cut"
			continue
		case errors.Is(err, io.EOF):
			return answer, provider.Cut("the stream ended early")
		case err != nil:
			return answer, err
		}
		var e *toyEvent
		if err := json.Unmarshal(data, &e); err != nil || e == nil {
			return answer, provider.Cut("no event")
		}
		switch {
		case e.Error != nil:
			return answer, provider.ParseFault(data).InBand(text.Len() > 0)
		case e.Text != nil:
			text.WriteString(*e.Text)
			if emit != nil && p.fault != "deltas" {
				emit(loop.Delta{Kind: loop.PartText, Text: *e.Text})
			}
		}
		answer.NativeFinish, answer.Usage.InputUncached = e.End, e.Input
	}
	native, err := json.Marshal(text.String())
	answer.Message.Parts = []loop.Part{loop.TextPart(text.String())}
	answer.Message.Native = &loop.Native{Wire: "toy", JSON: native}
	answer.Finish = provider.Settle(loop.FinishDone, answer.Message)
	return answer, err
}

const toyStream = `data: {\"text\":\"Hello\"}\n\ndata: {\"text\":\" there\"}\n\ndata: {\"input\":3,\"end\":\"stop\"}\n\n`

func recorded(status, answer string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(`{"provenance":{"licence":"made for this test"},"response":{"status":` + status + `,` + answer + `}}`)}
}

// suite is the suite of the toy, with a fault in the adapter or in the table.
func suite(fault string) providertest.Suite {
	s := providertest.Suite{
		New: func(base string, tuning providertest.Tuning) providertest.Provider {
			return toy{address: base, fault: fault, transport: provider.Transport{
				Key: providertest.Key, FirstByteTimeout: tuning.FirstByteTimeout,
				IdleTimeout: tuning.IdleTimeout, MaxResponseBytes: tuning.MaxResponseBytes,
			}.WithDefaults()}
		},
		Recordings: fstest.MapFS{
			"text.json":   recorded("200", `"sse":"`+toyStream+`"`),
			"broken.json": recorded("200", `"sse":"data: {\"text\":\"H\"}\n\ndata: {\"error\":{\"message\":\"no\"}}\n\n"`),
		},
		Want: map[string]providertest.Want{
			"text":   {Finish: loop.FinishDone, Text: "Hello there", Usage: loop.Usage{InputUncached: 3}},
			"broken": {Class: loop.ErrorMidStream},
		},
		Traits: map[providertest.Trait]string{providertest.TraitText: "text", providertest.TraitStreamError: "broken"},
		Absent: map[providertest.Trait]string{},
		Stream: "text", Word: "Hello",
		Whole: func(sent string) bool { return strings.Contains(sent, `"end":"stop"}`) },
	}
	for _, trait := range []providertest.Trait{
		providertest.TraitOneCall, providertest.TraitParallelCalls, providertest.TraitStreamedCall, providertest.TraitReasoning,
		providertest.TraitCache, providertest.TraitRefusal, providertest.TraitTruncatedCall, providertest.TraitPaused,
		providertest.TraitMissingUsage, providertest.TraitContext, providertest.TraitBadRequest, providertest.TraitNoModel,
		providertest.TraitWrongKey, providertest.TraitThrottled, providertest.TraitQuota, providertest.TraitServerError,
	} {
		s.Absent[trait] = "the toy wire has nothing but text"
	}
	switch fault {
	case "trait":
		delete(s.Absent, providertest.TraitPaused)
	case "reason":
		s.Absent[providertest.TraitPaused] = "no"
	case "unnamed":
		delete(s.Want, "broken")
	case "unfit":
		delete(s.Absent, providertest.TraitCache)
		s.Traits[providertest.TraitCache] = "text"
	}
	return s
}

// faultVariable names the fault that a copy of this test program has.
const faultVariable = "PROVIDERTEST_FAULT"

func TestToy(t *testing.T) { providertest.Run(t, suite(os.Getenv(faultVariable))) }

// TestSuiteFinds runs the suite on adapters and tables with one fault each: it must
// fail, and say where.
func TestSuiteFinds(t *testing.T) {
	t.Parallel()
	if os.Getenv(faultVariable) != "" {
		return // a copy of this program looks at the toy only
	}
	for fault, want := range map[string]string{
		"trait":   `trait "paused": name a recording`,
		"reason":  `trait "paused" is declared absent without a reason`,
		"unfit":   `trait "cache usage": recording text does not show it`,
		"unnamed": "no expectation for this recording",
		"replay":  "the message was not sent back as it came",
		"memo":    "the memo changes the request",
		"retry":   "want exactly 1",
		"key":     "the key is in the error",
		"cut":     "from an answer that ends in",
		"deltas":  "the deltas of text say",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestToy$/^(traits|recordings|cuts|statuses|key)$")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("the suite ends with %v and does not say %q:\n%s", err, want, out)
			}
		})
	}
}
