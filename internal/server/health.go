package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/postgres"
)

const (
	// readyTimeout bounds the question whether Postgres answers; probes usually wait
	// for one second or a few.
	readyTimeout = 2 * time.Second
	// readyGrace is for saying so. A statement that hangs is left to itself then: it ends
	// later, so that its connection is kept.
	readyGrace = 250 * time.Millisecond
	// tooLate is the answer while a statement hangs.
	tooLate = "not ready: database: it does not answer in time\n"
)

// Condition is one thing that decides, or only shows, how well this process can work.
type Condition struct {
	Name   string
	Fault  string // what is wrong, and what to do; empty: nothing
	Detail string // how it stands
	// Informs: a fault is shown and does not make the process unready. A provider that is
	// down is down for all replicas: taking them out of service would help nobody.
	Informs bool
}

// serveAlive says whether this process should be started anew.
func (s *Server) serveAlive(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Alive != nil {
		if err := s.cfg.Alive(); err != nil {
			s.log.ErrorContext(r.Context(), "not alive", "error", err)
			http.Error(w, "not alive: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// serveReady says whether this replica should get requests, and if not, why. With
// ?verbose it says how everything stands.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	conditions := s.conditions(ctx)
	var faults []string
	for _, c := range conditions {
		if c.Fault != "" && !c.Informs {
			faults = append(faults, c.Name+": "+c.Fault)
		}
	}
	code, word := http.StatusOK, "ready"
	if len(faults) > 0 {
		code, word = http.StatusServiceUnavailable, "not ready: "+strings.Join(faults, "; ")
		s.log.WarnContext(ctx, "not ready", "faults", faults)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if r.URL.Query().Has("verbose") {
		for _, c := range conditions {
			_, _ = fmt.Fprintln(w, c.line())
		}
	}
	_, _ = fmt.Fprintln(w, word)
}

// line is the condition in the form that readers of Kubernetes' health pages know.
func (c Condition) line() string {
	switch {
	case c.Fault == "":
		return strings.TrimSpace(fmt.Sprintf("[+]%s ok %s", c.Name, c.Detail))
	case c.Informs:
		return fmt.Sprintf("[!]%s %s", c.Name, c.Fault)
	}
	return fmt.Sprintf("[-]%s failed: %s", c.Name, c.Fault)
}

// conditions looks at everything, the database last.
func (s *Server) conditions(ctx context.Context) []Condition {
	draining := Condition{Name: "draining", Detail: "no"}
	if s.Draining() {
		draining.Fault = "this replica is shutting down"
	}
	all := []Condition{draining}
	if s.cfg.Conditions != nil {
		all = append(all, s.cfg.Conditions()...)
	}
	began := time.Now()
	err := s.store.Ready(ctx)
	database, schema := Condition{Name: "database", Detail: time.Since(began).Round(100 * time.Microsecond).String()}, Condition{Name: "schema"}
	switch {
	case errors.Is(err, postgres.ErrSchema):
		schema.Fault = err.Error()
	case err != nil:
		database.Fault, schema.Fault = err.Error(), "not known"
	}
	return append(all, database, schema)
}
