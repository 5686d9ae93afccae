package anthropic

import (
	"encoding/json"

	"github.com/loopd/loopd/internal/loop"
)

// Usage reads a raw usage object exactly as answers do. complete says that the
// cost can be known from it.
func Usage(raw json.RawMessage) (u loop.Usage, complete bool) {
	var reported *usage
	if json.Unmarshal(raw, &reported) != nil {
		return loop.Usage{}, false
	}
	var total usage
	total.merge(reported, true)
	return total.loop(), !total.missing()
}

// usage is the wire's count. A member that an event leaves out keeps the value
// of the event before; message_start already has the input, and its output is
// only a seed.
type usage struct {
	Input         *int64 `json:"input_tokens"`
	Output        *int64 `json:"output_tokens"`
	CacheRead     *int64 `json:"cache_read_input_tokens"`
	CacheWrite    *int64 `json:"cache_creation_input_tokens"`
	CacheLifetime *struct {
		FiveMinutes int64 `json:"ephemeral_5m_input_tokens"`
		OneHour     int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	OutputDetails *struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`

	final bool // the output count is the end's, not the seed
}

// merge takes over what v reports. final says that v came with the end.
func (u *usage) merge(v *usage, final bool) {
	if v == nil {
		return
	}
	u.final = u.final || final && v.Output != nil
	replace(&u.Input, v.Input)
	replace(&u.CacheRead, v.CacheRead)
	replace(&u.CacheWrite, v.CacheWrite)
	replace(&u.CacheLifetime, v.CacheLifetime)
	replace(&u.OutputDetails, v.OutputDetails)
	replace(&u.Output, v.Output)
}

func replace[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}

// missing reports whether the answer's cost cannot be known from the report.
func (u *usage) missing() bool { return u.Input == nil || !u.final }

// loop sorts the count into disjoint buckets. The wire's input excludes both
// cache counts; its output includes thinking.
func (u *usage) loop() loop.Usage {
	out := loop.Usage{InputUncached: count(u.Input), CacheRead: count(u.CacheRead), Output: count(u.Output)}
	out.CacheWrite5m = count(u.CacheWrite)
	if u.CacheLifetime != nil {
		// The split comes once, at the start; the total may grow afterwards, and
		// the growth has the lifetime that loopd asks for.
		out.CacheWrite1h = max(u.CacheLifetime.OneHour, 0)
		out.CacheWrite5m = max(out.CacheWrite5m-out.CacheWrite1h, u.CacheLifetime.FiveMinutes, 0)
	}
	if u.OutputDetails != nil {
		out.Reasoning = min(max(u.OutputDetails.Thinking, 0), out.Output)
		out.Output -= out.Reasoning
	}
	return out
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return max(*n, 0)
}
