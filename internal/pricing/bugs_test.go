package pricing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/pricing"
)

// Case 21, supernovae-st/nika 1368, Vigil-SOC/vigil 964: a model whose name has a dot for a
// dash is in no catalogue, costs nothing, and passes a cap of 0.02 USD for ever. Here a
// name is either a model's, with its price, or an error that says which row to add; no
// row comes back with rates of zero. (The list of all such bugs: BUGS.md of internal/loop.)
func TestBug21UnknownIsNotFree(t *testing.T) {
	t.Parallel()
	book := bundled(t)
	dash, err := book.Price("anthropic/claude-opus-4-1")
	if err != nil {
		t.Fatal(err)
	}
	dot, err := book.Price("anthropic/claude-opus-4.1")
	if err != nil || dot.Rates != dash.Rates {
		t.Errorf("with a dot it costs %+v, with a dash %+v, error %v", dot.Rates, dash.Rates, err)
	}
	for _, ref := range []string{"openai/gpt-4-1", "xai/grok-4.1", "anthropic/claude-opus-4..1", "openai/"} {
		price, err := book.Price(ref)
		if !errors.Is(err, pricing.ErrUnknownModel) || !strings.Contains(err.Error(), "the closest are") || !strings.Contains(err.Error(), "--prices") {
			t.Errorf("%s: error %v does not say which row is missing", ref, err)
		}
		if price.Validate() == nil {
			t.Errorf("%s: %+v passes for a price", ref, price)
		}
	}
	if err := (loop.Price{Model: "x-4.1", Window: 200_000}).Validate(); err == nil {
		t.Error("a row without rates passes for a price")
	}
}
