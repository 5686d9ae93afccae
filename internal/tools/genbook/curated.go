package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// correction is a row of curated.json: what is set holds for each of its models.
type correction struct {
	Provider   string          `json:"provider"`
	Models     []string        `json:"models"`
	Match      json.RawMessage `json:"match"` // adds the model, before all others
	Window     int64           `json:"context_window"`
	InsteadOf  int64           `json:"instead_of"` // the window that the list has
	MaxOutput  int64           `json:"max_output"`
	Reads      []string        `json:"reads"`
	Structured bool            `json:"structured"` // the provider can keep the models to a JSON Schema
	Prices     json.RawMessage `json:"prices"`
	Source     string          `json:"source"`
}

// correct applies curated.json. A row that no longer fits the list is an error,
// so that none outlives its reason.
func correct(book []chosen, text []byte) error {
	var file struct {
		About string       `json:"about"`
		Rows  []correction `json:"rows"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return fmt.Errorf("decode curated.json: %w", err)
	}
	for i, row := range file.Rows {
		if row.Source == "" {
			return fmt.Errorf("curated.json: rows[%d]: source is missing", i)
		}
		for _, id := range row.Models {
			if err := row.apply(book, id); err != nil {
				return fmt.Errorf("curated.json: rows[%d]: %s/%s: %w", i, row.Provider, id, err)
			}
		}
	}
	return nil
}

// apply corrects one model.
func (c correction) apply(book []chosen, id string) error {
	m := find(book, c.Provider, id)
	switch {
	case m == nil && c.Match == nil:
		return fmt.Errorf("the list has no such model")
	case m != nil && c.Match != nil:
		return fmt.Errorf("the list has the model now: drop match")
	case m == nil:
		at := slices.IndexFunc(book, func(p chosen) bool { return p.name == c.Provider })
		if at < 0 {
			return fmt.Errorf("the book has no such provider")
		}
		book[at].models = slices.Insert(book[at].models, 0, model{ID: id, Match: c.Match})
		m = &book[at].models[0]
	}
	if c.Window != 0 {
		if m.Window != c.InsteadOf {
			return fmt.Errorf("the list says that the window is %d, the row expects %d", m.Window, c.InsteadOf)
		}
		m.Window = c.Window
	}
	if c.MaxOutput != 0 {
		m.MaxOutput = c.MaxOutput
	}
	if c.Reads != nil {
		m.Reads = c.Reads
	}
	m.Structured = m.Structured || c.Structured
	if c.Prices != nil {
		m.Prices = c.Prices
	}
	return nil
}
