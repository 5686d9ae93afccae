package server

import (
	"crypto/sha256"
	"sync"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// maxSpecs bounds the cache. A deployment that creates runs of more agents than this at
// once decodes some of them again.
const maxSpecs = 256

// specCache holds decoded definitions by what is stored of them, as a busy agent's would
// be decoded for each of its runs: one with many tools takes longer than all the rest of
// a create. The zero value is empty. It is safe for concurrent use.
type specCache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]*loopdv1.AgentSpec
}

// decode is decodeSpec, but what it returns is others' as well: do not change it.
func (c *specCache) decode(stored []byte) (*loopdv1.AgentSpec, error) {
	key := sha256.Sum256(stored)
	c.mu.Lock()
	spec, ok := c.entries[key]
	c.mu.Unlock()
	if ok {
		return spec, nil
	}
	spec, err := decodeSpec(stored)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxSpecs {
		c.entries = map[[sha256.Size]byte]*loopdv1.AgentSpec{}
	}
	c.entries[key] = spec
	return spec, nil
}
