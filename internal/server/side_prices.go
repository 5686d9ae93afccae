package server

import "github.com/loopd/loopd/internal/loop"

// sidePrices finds what the models cost that a run calls beside its conversation, by
// model; nil if there are none. path names the definition in the request.
func (s *Server) sidePrices(path string, def loop.AgentSpec) (map[string]loop.Price, error) {
	var prices map[string]loop.Price
	if def.Summarizer != "" {
		price, err := s.price(path+".summarizer_model", def.Summarizer)
		if err != nil {
			return nil, err
		}
		prices = map[string]loop.Price{def.Summarizer: price}
	}
	return prices, nil
}
