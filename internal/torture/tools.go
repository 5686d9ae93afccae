package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// delivery is a line of the tool server's ledger: one request that arrived.
type delivery struct {
	At      time.Time `json:"at"`
	Tool    string    `json:"tool"`
	Run     string    `json:"run"`
	Call    string    `json:"call"`
	Attempt int       `json:"attempt"`
	Key     string    `json:"key"`
	Args    string    `json:"args_sha256"`
	N       string    `json:"n"`
	Mode    string    `json:"mode"`
	Applied bool      `json:"applied"`
	// Intent says whether the journal had the intent when the request arrived: "yes",
	// "no", or "unknown" while Postgres was away.
	Intent string `json:"intent"`
}

// risky reports whether a tool's calls must never be delivered twice.
func risky(tool string) bool { return tool == "effect" || tool == "final" }

// toolServer takes the calls of all tools.
type toolServer struct {
	ledger *ledger[delivery]
	db     *pgxpool.Pool // not through any link

	mu      sync.Mutex
	applied map[string]bool // by key
	broke   map[string]bool // by key: it was broken once
	good    []answer
}

// answer is a good one that was given to the end.
type answer struct {
	key     string
	attempt int
	at      time.Time
}

// answered are all good answers.
func (s *toolServer) answered() []answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.good)
}

func (s *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // cut on its way: it has not arrived
	}
	var args struct {
		N    string `json:"n"`
		Mode string `json:"mode"`
	}
	if err := json.Unmarshal(body, &args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	attempt, _ := strconv.Atoi(r.Header.Get("Loopd-Attempt"))
	sum := sha256.Sum256(body)
	d := delivery{
		At: time.Now(), Tool: r.PathValue("tool"), Run: r.Header.Get("Loopd-Run-Id"), Call: r.Header.Get("Loopd-Call-Id"),
		Attempt: attempt, Key: r.Header.Get("Idempotency-Key"), Args: hex.EncodeToString(sum[:]), N: args.N, Mode: args.Mode,
		Applied: args.Mode != "refused",
	}
	// The effect belongs to the request that arrived, whether or not its sender still waits.
	d.Intent = s.intent(context.WithoutCancel(r.Context()), d)
	if err := s.ledger.write(d); err != nil {
		panic(http.ErrAbortHandler)
	}
	s.answer(w, r, d, s.apply(d))
}

// intent looks for the intent in the journal, which must be there before the request.
func (s *toolServer) intent(ctx context.Context, d delivery) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var found bool
	err := s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM events WHERE run_id::text = $1 AND kind = 'call_started'
		AND body ->> 'call_id' = $2 AND (body ->> 'attempt')::int = $3 AND body ->> 'key' = $4)`, d.Run, d.Call, d.Attempt, d.Key).Scan(&found)
	switch {
	case err != nil:
		return "unknown"
	case found:
		return "yes"
	}
	return "no"
}

// apply makes the effect, and reports whether this is the first failure of a key
// that is to fail once.
func (s *toolServer) apply(d delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Applied {
		s.applied[d.Key] = true
	}
	first := !s.broke[d.Key]
	s.broke[d.Key] = true
	return first
}

// tookEffect is the truth about a call.
func (s *toolServer) tookEffect(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied[key]
}

func (s *toolServer) answer(w http.ResponseWriter, r *http.Request, d delivery, first bool) {
	switch {
	case d.Mode == "refused":
		http.Error(w, `{"error":"no"}`, http.StatusBadRequest)
		return
	case d.Mode == "broken" && first:
		http.Error(w, `{"error":"it broke"}`, http.StatusInternalServerError)
		return
	case d.Mode == "cut" && first:
		panic(http.ErrAbortHandler)
	case d.Mode == "hang" && first:
		pause(r.Context(), 2*toolTimeout)
		panic(http.ErrAbortHandler)
	case d.Mode == "ok":
		if !pause(r.Context(), time.Duration(chance(d.N, 300))*time.Millisecond) {
			return
		}
	case d.Mode == "slow":
		if !pause(r.Context(), 300*time.Millisecond+time.Duration(chance(d.N, 1500))*time.Millisecond) {
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"ok":true,"n":%q}`, d.N)
	if http.NewResponseController(w).Flush() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.good = append(s.good, answer{d.Key, d.Attempt, time.Now()})
	}
}
