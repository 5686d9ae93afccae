package enginetest

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// ModelRef is the model of every Spec; its provider is "fake".
const ModelRef = "fake/model"

// Spec is what a run of an agent with these tools is created with, at default limits.
func Spec(tools ...loop.ToolSpec) loop.Spec {
	rates := loop.Rates{Input: loop.MicroUSD, CacheRead: loop.MicroUSD, Output: 4 * loop.MicroUSD, Reasoning: 4 * loop.MicroUSD}
	return loop.Spec{
		Agent: "agents/test", AgentVersion: 1, Input: "do it",
		Definition: loop.AgentSpec{Model: ModelRef, Instructions: "Be brief.", Tools: tools},
		Limits:     loop.Defaults(),
		Price:      loop.Price{Model: ModelRef, Version: "test", Rates: rates, Window: 200_000, MaxOutput: 8192},
	}
}

// Tool is a tool with an effect, a timeout of 30 s and results of at most 16 KiB.
func Tool(name string, effect loop.Effect) loop.ToolSpec {
	return loop.ToolSpec{Name: name, Schema: []byte(`{"type":"object"}`), Effect: effect, Timeout: 30 * time.Second, MaxResultBytes: 16 << 10}
}
