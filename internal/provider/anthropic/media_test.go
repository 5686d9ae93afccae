package anthropic_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func media(kind loop.PartKind, m loop.Media) loop.Part { return loop.Part{Kind: kind, Media: &m} }

// TestAttachments: results first, then media, then text; the last block carries
// the mark, whatever it is.
func TestAttachments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		part loop.Part
		want string
	}{
		{"image", media(loop.PartImage, loop.Media{Type: "image/png", Name: "a.png", Data: []byte{0x89, 'P'}}),
			`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVA="}`},
		{"image by URL", media(loop.PartImage, loop.Media{Type: "image/png", URL: "https://x.example/a.png"}),
			`{"type":"image","source":{"type":"url","url":"https://x.example/a.png"}`},
		{"PDF", media(loop.PartDocument, loop.Media{Type: "application/pdf", Name: "a.pdf", Data: []byte("%PDF")}),
			`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERg=="},"title":"a.pdf"`},
		{"PDF by URL", media(loop.PartDocument, loop.Media{Type: "application/pdf", URL: "https://x.example/a.pdf"}),
			`{"type":"document","source":{"type":"url","url":"https://x.example/a.pdf"}`},
		{"text", media(loop.PartDocument, loop.Media{Type: "text/plain", Name: "a.txt", Data: []byte("über")}),
			`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"über"},"title":"a.txt"`},
		{"a kind of text", media(loop.PartDocument, loop.Media{Type: "text/csv; charset=utf-8", Data: []byte("a,b")}),
			`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"a,b"}`},
		{"no text after all", media(loop.PartDocument, loop.Media{Type: "text/plain", Data: []byte{0xff}}),
			`{"type":"document","source":{"type":"base64","media_type":"text/plain","data":"/w=="}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const mark = `,"cache_control":{"type":"ephemeral"}}`
			req := transcript()
			req.Messages = append(req.Messages[:2:2], user(loop.TextPart("See."), c.part), user(result("c1-1", "toolu_a", loop.OutcomeOK, "5"), result("c1-2", "toolu_b", loop.OutcomeOK, "")))
			want := `{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_a","content":"5"},{"type":"tool_result","tool_use_id":"toolu_b"},` +
				c.want + `},{"type":"text","text":"See."` + mark + "]}]}"
			if body := string(sent(t, req).Body); !strings.HasSuffix(body, want) {
				t.Errorf("request is %s, want it to end with %s", body, want)
			}
			req.Messages = []loop.Message{user(c.part)}
			want = `"messages":[{"role":"user","content":[` + c.want + mark + "]}]}"
			if body := string(sent(t, req).Body); !strings.HasSuffix(body, want) {
				t.Errorf("request is %s, want it to end with %s", body, want)
			}
		})
	}
}

func TestEmptyAttachment(t *testing.T) {
	t.Parallel()
	req := providertest.Ask()
	req.Messages = []loop.Message{user(media(loop.PartDocument, loop.Media{Type: "application/pdf", Name: "a.pdf"}))}
	_, err := newClient(answering(t, textAnswer).URL, providertest.Tuning{}).Generate(t.Context(), req)
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok || e.Class != loop.ErrorInternal || !strings.Contains(e.Message, `document "a.pdf" has neither data nor a URL`) {
		t.Errorf("got %v", err)
	}
}

// TestForeignNames: ids and names that other wires allow and this one refuses.
func TestForeignNames(t *testing.T) {
	t.Parallel()
	req := providertest.Ask()
	req.Messages = []loop.Message{
		user(loop.TextPart("hi")),
		{
			Role:   loop.RoleAssistant,
			Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(`{}`)},
			Parts:  []loop.Part{call("c1-1", "functions.look:0", "functions.look", `{}`), call("c1-2", "call_1", "", `{}`)},
		},
		user(result("c1-1", "functions.look:0", loop.OutcomeOK, "1"), result("c1-2", "call_1", loop.OutcomeOK, "2")),
	}
	want := `{"role":"assistant","content":[{"type":"tool_use","id":"c1-1","name":"functions_look","input":{}},{"type":"tool_use","id":"c1-2","name":"_","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1-1","content":"1"},{"type":"tool_result","tool_use_id":"c1-2","content":"2","cache_control":{"type":"ephemeral"}}]}]}`
	_, got, _ := strings.Cut(string(sent(t, req).Body), `},{"role":"assistant"`)
	if diff := cmp.Diff(want, `{"role":"assistant"`+got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}
