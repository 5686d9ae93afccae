package server

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
)

// A definition is decoded once, as it is stored, and another one by itself; the cache does
// not grow for ever, and what cannot be read is not kept.
func TestDefinitionsAreDecodedOnce(t *testing.T) {
	t.Parallel()
	var cache specCache
	stored := func(i int) []byte { return fmt.Appendf(nil, `{"model":"scripted/%d","labels":{"team":"shop"}}`, i) }
	first, err := cache.decode(stored(0))
	if err != nil {
		t.Fatal(err)
	}
	again, err := cache.decode(stored(0))
	if err != nil || again != first {
		t.Errorf("the same definition was decoded twice: %v", err)
	}
	fresh, err := decodeSpec(stored(0))
	if err != nil || !proto.Equal(first, fresh) {
		t.Errorf("the cache has %v, want %v: %v", first, fresh, err)
	}

	for i := range 2*maxSpecs + 1 {
		spec, err := cache.decode(stored(i))
		if err != nil || spec.GetModel() != fmt.Sprintf("scripted/%d", i) {
			t.Fatalf("definition %d is of %s: %v", i, spec.GetModel(), err)
		}
	}
	if len(cache.entries) > maxSpecs {
		t.Errorf("%d definitions are kept, want at most %d", len(cache.entries), maxSpecs)
	}

	if _, err := cache.decode([]byte("{")); err == nil {
		t.Error("half a definition was read")
	}
}
