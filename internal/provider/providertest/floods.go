package providertest

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

const (
	flood = 100 << 20 // of bytes that a hostile server sends
	// deltas is twice what the most talkative model may write. What grows with the
	// square of it does not end in time.
	deltas = 256_000
	// slack is what may be on its way when a client stops reading: buffers of both
	// sockets and of both processes.
	slack = 16 << 20
	// patience is how long a call may take that no bound of its own ends at once.
	patience = 2 * time.Minute
)

// floods checks answers of absurd size: the client stops reading, and asks no
// second time.
func (s Suite) floods(t *testing.T) {
	text := s.good(t).Response.SSE
	begin, delta, end := s.around(t, text)
	for _, c := range []struct {
		name   string
		tuning Tuning
		most   int // bytes read
		begin  string
		repeat string
	}{
		{"many events", Tuning{MaxResponseBytes: 4 << 20}, 4 << 20, begin, delta},
		{"one line", Tuning{}, 8 << 20, "data: ", strings.Repeat("x", 1<<16)},
		{"one line inside an answer", Tuning{}, 8 << 20, begin + "data: ", strings.Repeat("x", 1<<16)},
		{"one event of many lines", Tuning{}, 8 << 20, begin, "data: " + strings.Repeat("x", 1<<10) + "\n"},
		{"one object", Tuning{MaxResponseBytes: 4 << 20}, 4 << 20, `{"x":"`, strings.Repeat("x", 1<<16)},
		{"blank lines", Tuning{MaxResponseBytes: 4 << 20}, 4 << 20, "", strings.Repeat("\n", 1<<16)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			stopped := make(chan struct{})
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(stopped)
				w.Header().Set("Content-Type", "text/event-stream")
				write(w, c.begin)
				for sent.Load() < flood {
					n, err := io.WriteString(w, c.repeat)
					sent.Add(int64(n))
					if err != nil {
						return
					}
				}
			}))
			_, err := s.New(server.URL, c.tuning).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: loop.ErrorInternal})
			<-stopped
			if n := sent.Load(); n > int64(c.most+slack) {
				t.Errorf("took %d bytes, want at most %d", n, c.most+slack)
			}
			if n := len(server.Requests()); n != 1 {
				t.Errorf("sent %d requests, want exactly 1", n)
			}
		})
	}
	t.Run("many deltas", func(t *testing.T) { s.manyDeltas(t, begin, delta, end) })
}

// manyDeltas feeds more deltas than a model writes. Time and memory must grow with
// their number, not with its square.
func (s Suite) manyDeltas(t *testing.T, begin, delta, end string) {
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		write(w, begin)
		batch := strings.Repeat(delta, 1000)
		for range deltas / 1000 {
			if _, err := io.WriteString(w, batch); err != nil {
				return
			}
		}
		write(w, end)
	}))
	start := time.Now()
	var count int
	var peak uint64
	req := Ask()
	req.Emit = func(loop.Delta) {
		if count++; count%(deltas/20) == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
	}
	_, err := s.New(server.URL, Tuning{MaxResponseBytes: 1 << 30}).Generate(t.Context(), req)
	if err != nil { // what follows the deltas may contradict them
		_ = modelError(t, err)
	}
	if count < deltas {
		t.Errorf("saw %d deltas, want %d", count, deltas)
	}
	if most := uint64(256 << 20); peak > most {
		t.Errorf("the heap grew to %d bytes, want at most %d", peak, most)
	}
	if took := time.Since(start); took > patience {
		t.Errorf("took %s, want at most %s", took, patience)
	}
}

// around splits the stream into what stands before the event that says Word, the
// event, and what stands after it.
func (s Suite) around(t *testing.T, text string) (begin, delta, end string) {
	t.Helper()
	// Recordings end lines either way.
	blank := "\n\n"
	if strings.Contains(text, "\r\n\r\n") {
		blank = "\r\n\r\n"
	}
	at := strings.Index(text, s.Word)
	from := strings.LastIndex(text[:at], blank)
	if from < 0 {
		from = -len(blank)
	}
	to := strings.Index(text[at:], blank)
	if to < 0 {
		t.Fatalf("the event of %s that says %q does not end", s.Stream, s.Word)
	}
	from, to = from+len(blank), at+to+len(blank)
	return text[:from], text[from:to], text[to:]
}
