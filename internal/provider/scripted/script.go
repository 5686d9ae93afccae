// Package scripted is a model that says what a file tells it to: for the demo,
// for tests, for development without a key. It is deterministic and keeps no
// state that matters: which answer comes next follows from the transcript, so
// that a run continues in the script where it was, on any worker.
package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/template"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/loopd/loopd/internal/loop"
)

// Script is a set of scripted models. It is immutable.
type Script struct{ models map[string]model }

// model is one of them. Its answer is that of the first rule that holds, else
// the n-th answer of a run is answers[n-1]; behind the last one it goes on from
// answer loop_from, or repeats the last.
type model struct {
	Rules    []rule        `yaml:"rules"`
	Answers  []answer      `yaml:"answers"`
	LoopFrom int           `yaml:"loop_from"`
	Latency  time.Duration `yaml:"latency"` // before every answer, beside its own delay
	// Final is the answer when no tools may be called. Without it, it is the next
	// answer, without its calls.
	Final *answer `yaml:"final"`
}

// rule is an answer for a situation. What When leaves out does not matter.
type rule struct {
	When   when   `yaml:"when"`
	Answer answer `yaml:"answer"`
}

type when struct {
	LastToolError *bool  `yaml:"last_tool_error"` // a result of the last calls is an error
	InputContains string `yaml:"input_contains"`
	ToolsAllowed  *bool  `yaml:"tools_allowed"`
}

// answer is one model answer. Text and args are templates over .N, the number
// of the answer, and .Input, the run's input.
type answer struct {
	Text      string        `yaml:"text"`
	Reasoning string        `yaml:"reasoning"`
	Refusal   string        `yaml:"refusal"`
	Calls     []call        `yaml:"calls"`
	Finish    loop.Finish   `yaml:"finish"` // default: what the content says
	Usage     *usage        `yaml:"usage"`  // default: computed from the size of request and answer
	Delay     time.Duration `yaml:"delay"`
	// Errors come before the answer, one for each try of a run in this process.
	Errors []fault `yaml:"errors"`
}

type call struct {
	ID   string `yaml:"id"`
	Name string `yaml:"name"`
	Args any    `yaml:"args"` // a map, or text that is taken as it is
}

type usage struct {
	Input        int64 `yaml:"input"`
	CacheRead    int64 `yaml:"cache_read"`
	CacheWrite   int64 `yaml:"cache_write"` // for five minutes
	CacheWrite1h int64 `yaml:"cache_write_1h"`
	Output       int64 `yaml:"output"`
	Reasoning    int64 `yaml:"reasoning"`
	Missing      bool  `yaml:"missing"` // as from a server that reports none
}

type fault struct {
	Class      loop.ErrorClass `yaml:"class"`
	Status     int             `yaml:"status"`
	Code       string          `yaml:"code"`
	Message    string          `yaml:"message"`
	RetryAfter time.Duration   `yaml:"retry_after"`
}

// Parse reads a script. Its errors name the model and the answer.
func Parse(text []byte) (*Script, error) {
	var file struct {
		Models map[string]model `yaml:"models"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if len(file.Models) == 0 {
		return nil, errors.New("script: models is empty: add one with its answers")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file.Models)) {
		errs = append(errs, file.Models[name].validate("models."+name))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Script{models: file.Models}, nil
}

func (m model) validate(path string) error {
	if len(m.Answers) == 0 {
		return fmt.Errorf("%s.answers is empty: a model must say something", path)
	}
	if m.LoopFrom < 0 || m.LoopFrom > len(m.Answers) {
		return fmt.Errorf("%s.loop_from is %d: use 1 to %d, the number of an answer", path, m.LoopFrom, len(m.Answers))
	}
	var errs []error
	for i, r := range m.Rules {
		if r.When == (when{}) {
			errs = append(errs, fmt.Errorf("%s.rules[%d].when is empty: the rule would always hold; set last_tool_error, input_contains or tools_allowed", path, i))
		}
		errs = append(errs, r.Answer.validate(fmt.Sprintf("%s.rules[%d].answer", path, i)))
	}
	for i, a := range m.Answers {
		errs = append(errs, a.validate(fmt.Sprintf("%s.answers[%d]", path, i)))
	}
	if m.Final != nil {
		errs = append(errs, m.Final.validate(path+".final"))
	}
	return errors.Join(errs...)
}

func (a answer) validate(path string) error {
	var errs []error
	for i, c := range a.Calls {
		if c.Name == "" {
			errs = append(errs, fmt.Errorf("%s.calls[%d].name is missing", path, i))
		}
		if _, err := c.render(scene{N: 1}); err != nil {
			errs = append(errs, fmt.Errorf("%s.calls[%d].args: %w", path, i, err))
		}
	}
	if _, err := (scene{N: 1}).fill(a.Text); err != nil {
		errs = append(errs, fmt.Errorf("%s.text: %w", path, err))
	}
	if a.Finish != "" && !slices.Contains(finishes(), a.Finish) {
		errs = append(errs, fmt.Errorf("%s.finish: %q is none of %v", path, a.Finish, finishes()))
	}
	for i, f := range a.Errors {
		if !slices.Contains(classes(), f.Class) {
			errs = append(errs, fmt.Errorf("%s.errors[%d].class: %q is none of %v", path, i, f.Class, classes()))
		}
	}
	return errors.Join(errs...)
}

func finishes() []loop.Finish {
	return []loop.Finish{
		loop.FinishDone, loop.FinishToolCalls, loop.FinishTruncated, loop.FinishContext, loop.FinishPaused, loop.FinishRefused, loop.FinishUnknown,
	}
}

func classes() []loop.ErrorClass {
	return []loop.ErrorClass{
		loop.ErrorNotStarted, loop.ErrorThrottle, loop.ErrorQuota, loop.ErrorServer, loop.ErrorMidStream, loop.ErrorTimeout,
		loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth, loop.ErrorCancelled, loop.ErrorLost, loop.ErrorInternal,
	}
}

// scene is what templates see.
type scene struct {
	N     int
	Input string
}

func (s scene) fill(text string) (string, error) {
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = t.Execute(&b, s)
	return b.String(), err
}

// render is the call's argument text. Of a map, each text is filled on its own,
// so that quotes in the run's input cannot break the JSON around them.
func (c call) render(s scene) (string, error) {
	if text, ok := c.Args.(string); ok {
		return s.fill(text)
	}
	if c.Args == nil {
		return "{}", nil
	}
	args, err := s.fillAll(c.Args)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(args)
	return string(b), err
}

// fillAll fills the texts inside a value.
func (s scene) fillAll(value any) (any, error) {
	switch value := value.(type) {
	case string:
		return s.fill(value)
	case []any:
		filled := make([]any, len(value))
		for i, item := range value {
			var err error
			if filled[i], err = s.fillAll(item); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return filled, nil
	case map[string]any:
		filled := make(map[string]any, len(value))
		for key, member := range value {
			var err error
			if filled[key], err = s.fillAll(member); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
		return filled, nil
	}
	return value, nil
}
