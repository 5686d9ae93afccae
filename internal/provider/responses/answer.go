package responses

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// event is any event of a stream.
type event struct {
	Type         text            `json:"type"`
	Response     json.RawMessage `json:"response"`
	Item         json.RawMessage `json:"item"`
	OutputIndex  int             `json:"output_index"`
	SummaryIndex int             `json:"summary_index"`
	Delta        text            `json:"delta"`
	Error        json.RawMessage `json:"error"`
}

// response is a whole answer, or what an event says of one that is being made.
type response struct {
	Object     text              `json:"object"`
	ID         text              `json:"id"`
	Model      text              `json:"model"`
	Status     text              `json:"status"`
	Output     []json.RawMessage `json:"output"`
	Usage      json.RawMessage   `json:"usage"`
	Error      json.RawMessage   `json:"error"`
	Incomplete *struct {
		Reason text `json:"reason"`
	} `json:"incomplete_details"`
}

// answer collects one answer.
type answer struct {
	emit    func(loop.Delta)
	open    map[int]bool            // items that have begun and have not ended, by index
	done    map[int]json.RawMessage // items as they ended, by index
	begun   bool                    // the model has produced something
	writing bool                    // a message or a call is being written: more comes soon
	ended   bool                    // final is set
	final   response
}

func newAnswer(emit func(loop.Delta)) *answer {
	if emit == nil {
		emit = func(loop.Delta) {}
	}
	return &answer{emit: emit, open: map[int]bool{}, done: map[int]json.RawMessage{}}
}

// event takes one event in. Kinds that are not known are skipped: most belong to
// tools of the server's own, and all that counts comes again in an item.
func (a *answer) event(data []byte) error {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return provider.Cut("an event of the stream is no complete JSON of the expected kind")
	}
	switch e.Type {
	case "response.output_item.added":
		a.start(e)
	case "response.output_item.done":
		a.begun, a.writing = true, false
		delete(a.open, e.OutputIndex)
		a.done[e.OutputIndex] = e.Item
	case "response.output_text.delta":
		a.delta(loop.PartText, e.Delta)
	case "response.refusal.delta":
		a.delta(loop.PartRefusal, e.Delta)
	case "response.reasoning_summary_part.added":
		if e.SummaryIndex > 0 {
			a.delta(loop.PartReasoning, paragraphs)
		}
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		a.delta(loop.PartReasoning, e.Delta)
	case "response.function_call_arguments.delta":
		a.delta(loop.PartToolCall, e.Delta)
	case "response.completed", "response.incomplete", "response.failed":
		return a.end(e.Response)
	case "error":
		return a.fault(data)
	case "":
		if present(e.Error) {
			return a.fault(data)
		}
	}
	return nil
}

func (a *answer) delta(kind loop.PartKind, fragment text) {
	a.begun = true
	if fragment != "" {
		a.emit(loop.Delta{Kind: kind, Text: string(fragment)})
	}
}

func (a *answer) start(e event) {
	a.begun = true
	a.open[e.OutputIndex] = true
	var it item
	if json.Unmarshal(e.Item, &it) != nil {
		return
	}
	a.writing = it.Type == typeMessage || it.Type == typeCall
	if it.Type == typeCall {
		a.emit(loop.Delta{Kind: loop.PartToolCall, Tool: string(it.Name)})
	}
}

// end takes in the response that a stream ends with.
func (a *answer) end(raw json.RawMessage) error {
	if err := json.Unmarshal(raw, &a.final); err != nil {
		return provider.Cut("the last event of the stream is not of the expected kind")
	}
	a.ended = true
	return a.failed()
}

// whole takes in an answer that was not streamed.
func (a *answer) whole(body []byte) error {
	if err := json.Unmarshal(body, &a.final); err != nil {
		return provider.Cut("the answer is no complete JSON of the expected kind")
	}
	if a.final.Object != "response" && a.final.Output == nil {
		return a.fault(body)
	}
	return a.failed()
}

// failed is the error of a response that says of itself that it failed.
func (a *answer) failed() error {
	if a.final.Status != "failed" && !present(a.final.Error) {
		return nil
	}
	usage, _ := Usage(a.final.Usage)
	a.begun = a.begun || len(a.final.Output) > 0 || usage.Total() > 0
	if !present(a.final.Error) {
		return provider.Cut("the response failed, and the provider does not say why")
	}
	return a.fault(a.final.Error)
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// fault is the error for a failure inside a 200 answer. The API reports some of
// them with a code alone; the code then says what the type says elsewhere.
func (a *answer) fault(raw []byte) error {
	f := provider.ParseFault(raw)
	e := f.InBand(a.begun)
	if a.begun || e.Class != loop.ErrorMidStream || f.Code == "" {
		return e
	}
	typed, err := json.Marshal(map[string]string{"type": kindOf(f.Code), "code": f.Code, "message": f.Message})
	if err != nil {
		return e
	}
	return provider.ParseFault(typed).InBand(false)
}

// kindOf is the type of error that a code belongs to. The codes are those of the
// API's ResponseErrorCode; the rest are types already.
func kindOf(code string) string {
	switch {
	case code == "vector_store_timeout":
		return "server_error"
	case strings.HasPrefix(code, "invalid_"), strings.Contains(code, "image"), strings.HasSuffix(code, "_policy"):
		return "invalid_request_error"
	}
	return code
}

// result is the finished answer.
func (a *answer) result() (loop.ModelAnswer, error) {
	output, torn := a.output()
	items, err := parseItems(output)
	if err != nil {
		return loop.ModelAnswer{}, provider.Cut("an item of the answer is no object")
	}
	kept, err := native(output, items)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	m := neutral(items)
	m.Native = &loop.Native{Wire: wire, JSON: kept}
	end, word := a.finish(items)
	if torn && end == loop.FinishDone {
		end = loop.FinishUnknown
	}
	if end = provider.Settle(end, m); refused(m) {
		end = loop.FinishRefused // the status of a refusal is "completed"
	}
	usage, complete := Usage(a.final.Usage)
	return loop.ModelAnswer{
		Message: m, Finish: end, NativeFinish: word, Usage: usage, UsageMissing: !complete,
		ResponseID: string(a.final.ID), ResponseModel: string(a.final.Model),
	}, nil
}

// output is the answer's items in order. The last event of a stream lists them
// again, but with some servers that list is empty. torn says that one of them
// began and never ended.
func (a *answer) output() (items []json.RawMessage, torn bool) {
	if n := len(a.final.Output); n > 0 && n >= len(a.done) {
		return a.final.Output, false
	}
	items = []json.RawMessage{}
	for _, index := range slices.Sorted(maps.Keys(a.done)) {
		items = append(items, a.done[index])
	}
	return items, len(a.open) > 0
}

// finish is the table of statuses. What it does not name, such as a response that
// is queued or in progress, fails closed. It returns the API's own word too.
func (a *answer) finish(items []item) (end loop.Finish, word string) {
	word = string(a.final.Status)
	switch a.final.Status {
	case "completed":
		return whole(items), word
	case "incomplete":
		if a.final.Incomplete == nil {
			return loop.FinishUnknown, word
		}
		word = cmp.Or(string(a.final.Incomplete.Reason), word)
		switch word {
		case "max_output_tokens":
			return loop.FinishTruncated, word
		case "content_filter":
			return loop.FinishRefused, word
		}
	}
	return loop.FinishUnknown, word
}

// whole decides about a completed response by its items.
func whole(items []item) loop.Finish {
	end := loop.FinishDone
	for _, it := range items {
		switch {
		case !harmless(it.Type):
			return loop.FinishUnknown
		case it.cut():
			end = loop.FinishTruncated
		}
	}
	return end
}

func refused(m loop.Message) bool {
	return slices.ContainsFunc(m.Parts, func(p loop.Part) bool { return p.Kind == loop.PartRefusal })
}
