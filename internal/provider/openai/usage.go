package openai

import "github.com/loopd/loopd/internal/loop"

// usage is the wire's count.
type usage struct {
	Prompt        *int64 `json:"prompt_tokens"`
	Completion    *int64 `json:"completion_tokens"`
	Total         int64  `json:"total_tokens"`
	PromptDetails *struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails *struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	CacheHit int64 `json:"prompt_cache_hit_tokens"` // DeepSeek's name for cached tokens
	Cached   int64 `json:"cached_tokens"`           // Moonshot's
}

// missing reports whether the answer's cost cannot be known from the report.
func (u *usage) missing() bool { return u == nil || u.Prompt == nil || u.Completion == nil }

// loop sorts the count into disjoint buckets. The wire's prompt includes cached
// tokens. Its completion includes reasoning with most servers; those that leave
// reasoning out of it, or report it nowhere, still have it in the total.
func (u *usage) loop() loop.Usage {
	if u == nil {
		return loop.Usage{}
	}
	prompt, completion := count(u.Prompt), count(u.Completion)
	read, write := max(u.CacheHit, u.Cached, 0), int64(0)
	if u.PromptDetails != nil {
		read, write = max(read, u.PromptDetails.Cached), max(u.PromptDetails.CacheWrite, 0)
	}
	read = min(read, prompt)
	write = min(write, prompt-read)
	out := loop.Usage{InputUncached: prompt - read - write, CacheRead: read, CacheWrite5m: write}

	if outside := u.Total - prompt - completion; outside > 0 {
		out.Output, out.Reasoning = completion, outside
		return out
	}
	if u.CompletionDetails != nil {
		out.Reasoning = min(max(u.CompletionDetails.Reasoning, 0), completion)
	}
	out.Output = completion - out.Reasoning
	return out
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return max(*n, 0)
}
