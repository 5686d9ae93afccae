package main

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/demo"
)

// toolServer is what is behind the tools: the demo's shop, and some that misbehave.
type toolServer struct{ mux *http.ServeMux }

func newToolServer() *toolServer {
	t := &toolServer{mux: http.NewServeMux()}
	t.mux.Handle("/", demo.NewShop())
	t.mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the warehouse burnt down", http.StatusNotFound)
	})
	t.mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		pause(r.Context(), 8*time.Second)
		_, _ = fmt.Fprintln(w, `{"ok": true}`)
	})
	t.mux.HandleFunc("/hay", func(w http.ResponseWriter, r *http.Request) {
		for line := range 2500 {
			_, _ = fmt.Fprintf(w, "hay and straw, line %d of %s\n", line, r.URL.Query().Get("stack"))
		}
	})
	return t
}

// ServeHTTP answers the calls of tools.
func (t *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.mux.ServeHTTP(w, r) }

// exporter shows series that a healthy loopd never has, so that the alerts on them are
// seen too. It is safe for concurrent use.
type exporter struct {
	addr string

	mu   sync.Mutex
	page string
}

func newExporter() *exporter { return &exporter{} }

// show replaces all series.
func (e *exporter) show(page string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.page = page
}

// ServeHTTP is a metrics page.
func (e *exporter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = fmt.Fprint(w, e.page)
}
