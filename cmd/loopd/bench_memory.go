package main

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// memoryEvery is how often the memory of a measurement is looked at.
const memoryEvery = 50 * time.Millisecond

// memoryWatch finds out how much memory a measurement takes at most.
type memoryWatch struct {
	before uint64
	ended  chan struct{}
	most   chan uint64
}

// watchMemory begins to look.
func watchMemory() *memoryWatch {
	runtime.GC()
	w := &memoryWatch{before: memoryInUse(), ended: make(chan struct{}), most: make(chan uint64, 1)}
	w.next(w.before)
	return w
}

// next looks again after a moment, until the end.
func (w *memoryWatch) next(most uint64) {
	time.AfterFunc(memoryEvery, func() {
		most := max(most, memoryInUse())
		select {
		case <-w.ended:
			w.most <- most
		default:
			w.next(most)
		}
	})
}

// stop returns by how much the memory in use was larger at most.
func (w *memoryWatch) stop() uint64 {
	close(w.ended)
	return <-w.most - w.before
}

// memoryInUse is the heap that the last collection found alive, and all stacks.
func memoryInUse() (sum uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	for _, s := range samples {
		sum += s.Value.Uint64()
	}
	return sum
}

// allocated is what was ever put on the heap. The runtime counts what a thread has put
// there once the thread takes a new span, so that it is exact for thousands of objects.
func allocated() (objects, bytes uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}
