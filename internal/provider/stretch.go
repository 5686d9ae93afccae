package provider

import (
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// Stretch is a part of a transcript in which one side speaks.
type Stretch struct {
	Role    loop.Role
	Message loop.Message      // of the assistant: its one message
	Results []loop.ToolResult // of the user: all results, which go first
	Texts   []string          // of the user: all text that is not blank, in order
	Media   []loop.Part       // of the user: images and documents, which go before the text

	messages int // how many messages it is made of
}

// Stretches merges what stands between two assistant messages: providers want
// every result directly after its call, before any text.
func Stretches(messages []loop.Message) []Stretch {
	var all []Stretch
	for _, m := range messages {
		if m.Role == loop.RoleAssistant {
			all = append(all, Stretch{Role: m.Role, Message: m, messages: 1})
			continue
		}
		if n := len(all); n == 0 || all[n-1].Role != loop.RoleUser {
			all = append(all, Stretch{Role: loop.RoleUser})
		}
		all[len(all)-1].add(m.Parts)
		all[len(all)-1].messages++
	}
	return all
}

// add sorts the parts of a user message.
func (s *Stretch) add(parts []loop.Part) {
	for _, p := range parts {
		switch {
		case p.Kind == loop.PartToolResult && p.Result != nil:
			s.Results = append(s.Results, *p.Result)
		case p.Kind == loop.PartText && strings.TrimSpace(p.Text) != "":
			s.Texts = append(s.Texts, p.Text)
		case p.Media != nil:
			s.Media = append(s.Media, p)
		}
	}
}
