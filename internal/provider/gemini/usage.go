package gemini

import (
	"encoding/json"

	"github.com/loopd/loopd/internal/loop"
)

// Usage sorts a usageMetadata into disjoint buckets. complete is false when the
// cost of the answer cannot be known from it; what it does say is returned all
// the same.
func Usage(raw json.RawMessage) (u loop.Usage, complete bool) {
	var wire usage
	if err := json.Unmarshal(raw, &wire); err != nil {
		return loop.Usage{}, false
	}
	return wire.loop(), wire.complete()
}

// usage is the wire's count. Zeros are left out of it. Each event of a stream has
// a count so far; Vertex AI begins with one that has no tokens at all.
type usage struct {
	Prompt        *int64 `json:"promptTokenCount"`        // cached tokens included
	Cached        *int64 `json:"cachedContentTokenCount"` // read from a cache
	ToolUsePrompt *int64 `json:"toolUsePromptTokenCount"` // results of tools that Google ran; not in prompt
	Candidates    *int64 `json:"candidatesTokenCount"`    // thoughts excluded
	Thoughts      *int64 `json:"thoughtsTokenCount"`
	Total         *int64 `json:"totalTokenCount"`

	final bool // the count came with the end of the answer
}

// merge takes over what v reports. final says that v came with the end.
func (u *usage) merge(v usage, final bool) {
	u.final = final
	replace(&u.Prompt, v.Prompt)
	replace(&u.Cached, v.Cached)
	replace(&u.ToolUsePrompt, v.ToolUsePrompt)
	replace(&u.Candidates, v.Candidates)
	replace(&u.Thoughts, v.Thoughts)
	replace(&u.Total, v.Total)
}

func replace(to **int64, from *int64) {
	if from != nil {
		*to = from
	}
}

// complete reports whether input and output are known. An answer that is empty,
// because it was blocked or spent on thoughts, has a total but no candidates.
func (u *usage) complete() bool {
	return u.Prompt != nil && (u.Candidates != nil || u.Total != nil)
}

// loop sorts the count into disjoint buckets. What the total has beyond the rest
// is output that is named nowhere, and counted as the dearer kind.
func (u *usage) loop() loop.Usage {
	prompt, tools := count(u.Prompt), count(u.ToolUsePrompt)
	read := min(count(u.Cached), prompt)
	out := loop.Usage{
		InputUncached: prompt - read + tools, CacheRead: read,
		Output: count(u.Candidates), Reasoning: count(u.Thoughts),
	}
	out.Reasoning += max(count(u.Total)-out.Total(), 0)
	return out
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return max(*n, 0)
}
