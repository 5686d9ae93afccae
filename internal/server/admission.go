package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// closest is how many similar models an error offers.
const closest = 3

// price finds what a model costs, or says what to do about it. path names the
// model in the request, for the error.
func (s *Server) price(path, model string) (loop.Price, error) {
	provider, _, _ := strings.Cut(model, "/")
	if !s.cfg.ProviderKnown(provider) {
		r := invalid(fieldError{path, fmt.Sprintf("no provider %q is configured for model %q%s", provider, model, s.similar(model))})
		r.reason, r.metadata = loopdv1.ErrorReason_ERROR_REASON_MODEL_UNKNOWN, map[string]string{"model": model}
		return loop.Price{}, r
	}
	price, err := s.cfg.Prices(model)
	if err == nil {
		err = price.Validate()
	}
	if err != nil {
		r := invalid(fieldError{path, fmt.Sprintf("model %q has no complete price, so no budget could hold: %v%s", model, err, s.similar(model))})
		r.reason, r.metadata = loopdv1.ErrorReason_ERROR_REASON_MODEL_UNPRICED, map[string]string{"model": model}
		return loop.Price{}, r
	}
	return price, nil
}

// similar offers the models whose names are closest to a wrong one.
func (s *Server) similar(model string) string {
	var known []string
	for _, m := range s.cfg.Models() {
		if provider, _, _ := strings.Cut(m, "/"); s.cfg.ProviderKnown(provider) {
			known = append(known, m)
		}
	}
	if len(known) == 0 {
		return ""
	}
	slices.SortStableFunc(known, func(a, b string) int { return cmp.Compare(distance(model, a), distance(model, b)) })
	return "; the closest models are " + strings.Join(known[:min(closest, len(known))], ", ")
}

// distance is the number of bytes to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// checkDefinition refuses a definition that no run could work with. path names it in
// the request.
func (s *Server) checkDefinition(path string, def definition) error {
	var faults []fieldError
	for _, tool := range def.Tools {
		place := def.places[tool.Name]
		faults = append(faults, s.checkTool(place, tool)...)
		if fault := verifyFault(def, tool); fault != "" {
			faults = append(faults, fieldError{place + ".verify", fault})
		}
	}
	if len(def.OutputSchema) > 0 {
		for _, problem := range s.cfg.ValidateSchema(def.OutputSchema) {
			faults = append(faults, fieldError{path + ".output.json_schema", problem})
		}
	}
	if len(faults) > 0 {
		slices.SortStableFunc(faults, func(a, b fieldError) int { return cmp.Compare(a.field, b.field) })
		return invalid(faults...)
	}
	if _, err := s.prices(path+".model", path, def.AgentSpec); err != nil {
		return err
	}
	_, err := s.sidePrices(path, def.AgentSpec)
	return err
}

// verifyFault says why a tool cannot be verified by the one that it names, or "".
func verifyFault(def definition, tool loop.ToolSpec) string {
	if tool.Verify == "" || tool.Verify == tool.Name {
		return ""
	}
	verifier, ok := def.Tool(tool.Verify)
	switch {
	case !ok:
		return fmt.Sprintf("the agent has no tool %q: name one of its own", tool.Verify)
	case verifier.Effect != loop.ReadOnly:
		return fmt.Sprintf("tool %q is not EFFECT_READ_ONLY, so looking could do harm: name one that is", tool.Verify)
	case verifier.HTTP == nil && verifier.MCP == nil:
		return fmt.Sprintf("tool %q is not one that loopd can ask by itself: name an HTTP or MCP tool", tool.Verify)
	}
	return ""
}

// prices finds what the models of a definition cost: the model's first, then those of
// its fallbacks in order. modelPath and path name the model and the definition in the
// request.
func (s *Server) prices(modelPath, path string, def loop.AgentSpec) ([]loop.Price, error) {
	first, err := s.price(modelPath, def.Model)
	if err != nil {
		return nil, err
	}
	prices := []loop.Price{first}
	for i, model := range def.Fallbacks {
		field := fmt.Sprintf("%s.fallback_models[%d]", path, i)
		if model == def.Model {
			return nil, invalid(fieldError{field, fmt.Sprintf("%q is the agent's model itself: name another, or leave it out", model)})
		}
		price, err := s.price(field, model)
		if err != nil {
			return nil, err
		}
		prices = append(prices, price)
	}
	return prices, nil
}
