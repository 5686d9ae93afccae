package loop_test

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// begin makes the run that a script's run line describes.
func (s *script) begin(words []string) {
	s.spec = loop.Spec{
		Agent: "agents/support", AgentVersion: 3, Input: "Where is order 4892?", Limits: loop.Defaults(),
		Definition: loop.AgentSpec{Model: "sim/one", Instructions: "You are a support agent."},
		Price: loop.Price{Model: "sim/one", Version: "2026-03", Window: 200_000, Rates: loop.Rates{
			Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD, CacheWrite1h: 3750 * loop.NanoUSD,
			Output: 15 * loop.MicroUSD, Reasoning: 15 * loop.MicroUSD,
		}},
	}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if s.asks(name, value) {
			continue
		}
		switch name {
		case "tools":
			for tool := range strings.SplitSeq(value, ",") {
				s.spec.Definition.Tools = append(s.spec.Definition.Tools, parseTool(tool))
			}
		case "limits":
			for limit := range strings.SplitSeq(value, ",") {
				k, v, _ := strings.Cut(limit, ":")
				s.setLimit(&s.spec.Limits, k, v)
			}
		case "fallbacks": // each one is dearer than the model before it
			for model := range strings.SplitSeq(value, ",") {
				price := s.spec.Price
				price.Model = model
				price.Rates.Output += loop.USD(len(s.spec.FallbackPrices)+1) * 15 * loop.MicroUSD
				s.spec.Definition.Fallbacks = append(s.spec.Definition.Fallbacks, model)
				s.spec.FallbackPrices = append(s.spec.FallbackPrices, price)
			}
		case "attach":
			for kind := range strings.SplitSeq(value, ",") {
				s.spec.Attachments = append(s.spec.Attachments, attachment(kind))
			}
		case "images":
			s.spec.Price.ImageTokens = s.number(value)
		case "schema":
			s.spec.Definition.OutputSchema = json.RawMessage(`{"type":"object"}`)
		case "structured": // the model can be held to a schema
			s.spec.Price.Structured = true
			for i := range s.spec.FallbackPrices {
				s.spec.FallbackPrices[i].Structured = value != "first"
			}
		case "assert", "validator", "judge", "checkpoint":
			s.contract(name, value)
		case "tell_model":
			s.spec.Definition.OnDoubt = loop.DoubtTellsModel
		case "depth":
			s.spec.Parent = &loop.ParentRef{RunID: "r-0", CallID: "c1-1", RootID: "r-0", Depth: int(s.number(value))}
		case "native":
			s.native = true
		case "explain":
			s.explain = true
		case "acts":
			s.spec.Definition.Acts = map[string]loop.Verdict{}
			for act := range strings.SplitSeq(value, ",") {
				guard, verdict, _ := strings.Cut(act, ":")
				s.spec.Definition.Acts[guard] = loop.Verdict(verdict)
			}
			for _, fault := range loop.CheckActs(s.spec.Definition.Acts) {
				s.t.Fatal(fault)
			}
		case "refuse":
			s.broke = append(s.broke, strings.ReplaceAll(value, ":", " "))
		case "window":
			s.spec.Price.Window = s.number(value)
		case "summarizer": // as dear as the model, or thirty times so
			price := s.spec.Price
			price.Model = value
			if strings.Contains(value, "dear") {
				price.Rates.Input, price.Rates.Output = 30*price.Rates.Input, 30*price.Rates.Output
			}
			s.spec.Definition.Summarizer, s.spec.SidePrices = value, map[string]loop.Price{value: price}
		default:
			s.t.Fatalf("run has no %q", w)
		}
	}
	for _, problem := range s.spec.Limits.Validate(loop.Ceilings()) {
		s.t.Fatalf("limits: %v", problem)
	}
	s.state, _ = loop.Fold(theRun, nil)
	s.append(loop.Created{Spec: s.spec})
	s.claim(false)
	s.settle()
}

// attachment is a part of the input that is no text.
func attachment(kind string) loop.Part {
	switch kind {
	case "image":
		return loop.Part{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Data: []byte("small")}}
	case "notes":
		return loop.Part{Kind: loop.PartDocument, Media: &loop.Media{Type: "text/plain", Name: "n", Data: []byte(strings.Repeat("x", 999))}}
	}
	return loop.Part{Kind: loop.PartDocument, Media: &loop.Media{Type: "application/pdf", URL: "https://example.com/a.pdf"}}
}

func parseTool(text string) loop.ToolSpec {
	words := strings.Split(text, ":")
	spec := loop.ToolSpec{Name: words[0], Schema: json.RawMessage(`{"type":"object"}`), Timeout: 30 * time.Second, MaxResultBytes: 16 << 10}
	if words[1] != "none" {
		spec.Effect = loop.Effect(strings.ToUpper(words[1]))
	}
	for _, w := range words[2:] {
		what, value, _ := strings.Cut(w, "=")
		switch what {
		case "poll":
			spec.Pollable, spec.HTTP = true, &loop.HTTPSpec{Method: "GET", URL: "http://x"}
		case "client":
			spec.Client = &loop.ClientSpec{}
		case "ask_human", "wait", "finish", "read_result":
			spec.Builtin = loop.Builtin(what)
		case "always":
			spec.Approval.Mode = loop.ApprovalAlways
		case "verify":
			spec.Verify = value
		case "max":
			n, err := strconv.Atoi(value)
			if err != nil {
				panic(err)
			}
			spec.MaxCalls = n
		case "agent":
			spec.Child = &loop.ChildSpec{HandOver: value == "hand_over", Spec: loop.Spec{
				Agent: "agents/" + spec.Name, Definition: loop.AgentSpec{Model: "sim/one"}, Limits: loop.Defaults(),
			}}
		default:
			spec.Pollable = true
		}
	}
	return spec
}

// setLimit finds a limit by its name in JSON.
func (s *script) setLimit(limits *loop.Limits, name, value string) {
	v := reflect.ValueOf(limits).Elem()
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag != name {
			continue
		}
		var err error
		switch field := v.Field(i).Addr().Interface().(type) {
		case *time.Duration:
			*field, err = time.ParseDuration(value)
		case *loop.USD:
			err = field.UnmarshalText([]byte(value))
		default:
			err = json.Unmarshal([]byte(value), field)
		}
		if err != nil {
			s.t.Fatalf("limit %s: %v", name, err)
		}
		return
	}
	s.t.Fatalf("there is no limit %q", name)
}

func (s *script) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.t.Fatalf("%q is no number", text)
	}
	return n
}
