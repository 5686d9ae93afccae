package openai

import (
	"encoding/json"
	"strconv"

	"github.com/loopd/loopd/internal/loop"
)

// Usage sorts a usage object into disjoint buckets, exactly as answers do. It is
// not complete if it does not say, or not credibly, what the call cost: such a
// call is charged at its hold.
func Usage(raw json.RawMessage) (u loop.Usage, complete bool) {
	report := parseUsage(raw)
	return report.loop(), report.complete()
}

// tokens is a count. What is no number, or below zero, was not said.
type tokens struct {
	n    int64
	said bool
}

// UnmarshalJSON never fails: an odd count must not make a paid answer unreadable.
func (t *tokens) UnmarshalJSON(raw []byte) error {
	// Some servers write counts as 12.0. Whole numbers are exact up to 2^53.
	if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n >= 0 && n < 1<<53 {
		*t = tokens{n: int64(n), said: true}
	}
	return nil
}

// usage is the wire's count, by all the names that servers have for it.
type usage struct {
	Prompt        tokens `json:"prompt_tokens"`
	Completion    tokens `json:"completion_tokens"`
	Total         tokens `json:"total_tokens"`
	PromptDetails struct {
		Cached     tokens `json:"cached_tokens"`
		CacheWrite tokens `json:"cache_write_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning tokens `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	CacheHit  tokens `json:"prompt_cache_hit_tokens"` // DeepSeek's name for cached tokens
	Cached    tokens `json:"cached_tokens"`           // Moonshot's
	NumCached tokens `json:"num_cached_tokens"`       // Mistral's
}

// parseUsage returns nil if raw is no usage at all.
func parseUsage(raw json.RawMessage) *usage {
	var u *usage
	if len(raw) == 0 || json.Unmarshal(raw, &u) != nil {
		return nil
	}
	return u
}

// complete reports whether the answer's cost can be known from the report. More
// cached tokens than there were prompt tokens are no count that can be trusted.
func (u *usage) complete() bool {
	return u != nil && u.Prompt.said && u.Completion.said && u.read()+u.PromptDetails.CacheWrite.n <= u.Prompt.n
}

// read is the count of tokens that came from the cache.
func (u *usage) read() int64 {
	return max(u.PromptDetails.Cached.n, u.CacheHit.n, u.Cached.n, u.NumCached.n)
}

// loop sorts the count into disjoint buckets. The wire's prompt includes cached
// tokens. Its completion includes reasoning with most servers; those that leave
// reasoning out of it, or report it nowhere, still have it in the total.
func (u *usage) loop() loop.Usage {
	if u == nil {
		return loop.Usage{}
	}
	prompt, completion := u.Prompt.n, u.Completion.n
	read := min(u.read(), prompt)
	write := min(u.PromptDetails.CacheWrite.n, prompt-read)
	out := loop.Usage{InputUncached: prompt - read - write, CacheRead: read, CacheWrite5m: write}

	reasoning := u.CompletionDetails.Reasoning.n
	outside := u.Total.n - prompt - completion
	if !u.Total.said && reasoning > completion {
		outside = reasoning // it does not fit inside
	}
	if outside > 0 {
		out.Output, out.Reasoning = completion, outside
		return out
	}
	out.Reasoning = min(reasoning, completion)
	out.Output = completion - out.Reasoning
	return out
}
