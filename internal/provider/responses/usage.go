package responses

import (
	"encoding/json"

	"github.com/loopd/loopd/internal/loop"
)

// usage is the wire's count.
type usage struct {
	Input        *int64 `json:"input_tokens"`
	Output       *int64 `json:"output_tokens"`
	Total        int64  `json:"total_tokens"`
	InputDetails *struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"` // since GPT-5.6
	} `json:"input_tokens_details"`
	OutputDetails *struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

// Usage sorts the usage object of a response into disjoint buckets, in tokens.
// The wire's input includes what was read from and written to the cache, and its
// output includes reasoning; servers that leave reasoning out of the output still
// have it in the total. Details above their total are cut to it, negative counts
// are 0. complete is false when the cost of the answer cannot be known from raw.
func Usage(raw json.RawMessage) (u loop.Usage, complete bool) {
	var w usage
	if len(raw) == 0 || json.Unmarshal(raw, &w) != nil {
		return loop.Usage{}, false
	}
	input, output := count(w.Input), count(w.Output)
	if d := w.InputDetails; d != nil {
		u.CacheRead = min(max(d.Cached, 0), input)
		u.CacheWrite5m = min(max(d.CacheWrite, 0), input-u.CacheRead)
	}
	u.InputUncached = input - u.CacheRead - u.CacheWrite5m
	if outside := w.Total - input - output; outside > 0 {
		u.Output, u.Reasoning = output, outside
	} else {
		if d := w.OutputDetails; d != nil {
			u.Reasoning = min(max(d.Reasoning, 0), output)
		}
		u.Output = output - u.Reasoning
	}
	return u, w.Input != nil && w.Output != nil
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return max(*n, 0)
}
