package tool

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// builtins are the tools that loopd runs itself: what the model reads of them.
var builtins = map[loop.Builtin]loop.ToolSpec{
	loop.BuiltinWait: {
		Name: "wait", Effect: loop.ReadOnly, Pollable: true,
		Description: "Wait without using tokens: for some seconds, until a time, or until the result of a tool that can be polled changes. Prefer this to calling a tool again and again.",
		Schema: schema(`"seconds":{"type":"number","exclusiveMinimum":0,"description":"how long at most"},
			"until":{"type":"string","format":"date-time","description":"until when at most, instead of seconds"},
			"tool":{"type":"string","description":"look at this tool's result, and come back as soon as it changes"},
			"arguments":{"type":"object","description":"the arguments for that tool"},
			"every_seconds":{"type":"number","minimum":5,"description":"how often to look; default 5"}`),
	},
	loop.BuiltinAskHuman: {
		Name: "ask_human", Effect: loop.ReadOnly,
		Description: "Ask a person a question that only a person can answer. It may take hours. Offer choices where you can.",
		Schema: schema(`"question":{"type":"string","minLength":1},
			"choices":{"type":"array","items":{"type":"string"},"maxItems":10,"description":"answers to choose from"}`, "question"),
	},
	loop.BuiltinFinish: {
		Name: "finish", Effect: loop.ReadOnly,
		Description: "Give the final answer. Call it once, alone, when you are done.",
	},
	loop.BuiltinMemoryGet: {
		Name: "memory_get", Effect: loop.ReadOnly,
		Description: "Read a note that you or an earlier run left.",
		Schema:      schema(`"key":{"type":"string","minLength":1,"maxLength":256}`, "key"),
	},
	loop.BuiltinMemoryPut: {
		Name: "memory_put", Effect: loop.Idempotent,
		Description: "Leave a note for later runs, or replace one. Empty text forgets it.",
		Schema:      schema(`"key":{"type":"string","minLength":1,"maxLength":256},"text":{"type":"string"}`, "key", "text"),
	},
	loop.BuiltinMemorySearch: {
		Name: "memory_search", Effect: loop.ReadOnly,
		Description: "Find notes that hold all of these words, exactly as they are written; best first.",
		Schema:      schema(`"query":{"type":"string","minLength":1}`, "query"),
	},
	loop.BuiltinReadResult: {
		Name: "read_result", Effect: loop.ReadOnly,
		Description: "Read more of the result of an earlier call: what was cut because it was too long, or left out later to save room. Read a part by its offset, or find the lines that hold a text.",
		Schema: schema(`"call":{"type":"string","minLength":1,"maxLength":64,"description":"the call, as it was named where its result was cut, such as c3-1"},
			"offset":{"type":"integer","minimum":0,"description":"from which byte on; default 0"},
			"limit":{"type":"integer","minimum":1,"description":"how many bytes at most; default as many as can be shown"},
			"find":{"type":"string","minLength":1,"description":"instead: list the lines that hold exactly this text"}`, "call"),
	},
}

// schema is an object with these properties and no others.
func schema(properties string, required ...string) json.RawMessage {
	names, err := json.Marshal(append([]string{}, required...))
	if err != nil {
		panic(err) // strings always encode
	}
	return json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{%s},"required":%s,"additionalProperties":false}`, properties, names))
}

// Builtin is the definition of a tool that loopd runs itself. The arguments of
// finish are the answer, so its schema is the agent's output schema; without one
// the answer is a text.
func Builtin(name loop.Builtin, outputSchema json.RawMessage) (loop.ToolSpec, error) {
	spec, ok := builtins[name]
	if !ok {
		return loop.ToolSpec{}, fmt.Errorf("there is no built-in tool %q", name)
	}
	spec.Builtin, spec.Timeout, spec.MaxResultBytes = name, 30*time.Second, 16<<10
	if name == loop.BuiltinFinish {
		spec.Schema = outputSchema
		if len(outputSchema) == 0 {
			spec.Schema = schema(`"answer":{"type":"string","minLength":1}`, "answer")
		}
	}
	return spec, nil
}
