package demo

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Shop is what is behind the demo's tools. Its inventory answers 429 for ever, as the
// one did that this all began with. It is safe for concurrent use.
type Shop struct {
	mux *http.ServeMux

	mu     sync.Mutex
	ledger []Refund
}

// Refund is a request to pay money back that reached the shop.
type Refund struct {
	Key      string      `json:"-"` // the caller's Idempotency-Key
	Order    string      `json:"order_id"`
	Amount   json.Number `json:"amount"`
	Currency string      `json:"currency"`
}

// NewShop opens a shop that has paid nothing back.
func NewShop() *Shop {
	s := &Shop{mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /orders", getOrder)
	s.mux.HandleFunc("GET /shipments", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"shipment": r.URL.Query().Get("shipment"), "carrier": "Northline", "location": "Hamburg hub", "arrives": "Thursday",
		})
	})
	s.mux.HandleFunc("GET /customers", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"customer_id": r.URL.Query().Get("customer_id"), "name": "Ada Lindqvist", "tier": "gold"})
	})
	s.mux.HandleFunc("GET /inventory", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		writeJSON(w, http.StatusTooManyRequests, map[string]any{"error": "rate limit exceeded"})
	})
	s.mux.HandleFunc("GET /reports", getReport)
	s.mux.HandleFunc("GET /sources", getSource)
	s.mux.HandleFunc("POST /refunds", s.postRefund)
	return s
}

// ServeHTTP answers the calls of tools.
func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Refunds are the refunds whose key begins so, in the order in which they came. What
// came twice is in it twice.
func (s *Shop) Refunds(keyPrefix string) []Refund {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.ledger), func(r Refund) bool { return !strings.HasPrefix(r.Key, keyPrefix) })
}

// postRefund writes its ledger before it answers, so that the ledger is what happened
// whatever becomes of the answer.
func (s *Shop) postRefund(w http.ResponseWriter, r *http.Request) {
	refund := Refund{Key: r.Header.Get("Idempotency-Key")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&refund); err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	s.mu.Lock()
	s.ledger = append(s.ledger, refund)
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"refund": "RF-" + number(refund.Key, 90000), "order_id": refund.Order, "refunded": refund.Amount})
}

func getOrder(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("order_id")
	writeJSON(w, http.StatusOK, map[string]any{
		"order_id": id, "customer_id": "CUST-" + number(id, 900), "status": "shipped",
		"items":    []map[string]any{{"sku": "SKU-" + number(id, 5000), "quantity": 1}},
		"shipment": "SHIP-" + number(id, 90000),
	})
}

func getReport(w http.ResponseWriter, r *http.Request) {
	page := r.URL.Query().Get("page")
	var b strings.Builder
	for line := range 120 {
		fmt.Fprintf(&b, "page %s, line %d: returns of %s units, mostly unopened\n", page, line, number(page+fmt.Sprint(line), 300))
	}
	writeJSON(w, http.StatusOK, map[string]any{"page": page, "more": true, "text": b.String()})
}

// getSource answers with some 2,700 bytes: with the call before it, 800 tokens.
func getSource(w http.ResponseWriter, r *http.Request) {
	topic, part := r.URL.Query().Get("topic"), r.URL.Query().Get("part")
	var b strings.Builder
	for line := range 33 {
		fmt.Fprintf(&b, "%s.%02d On %s: call %s reads %s tokens and writes %s.\n", part, line, topic,
			number(topic+part+fmt.Sprint(line), 10), number(part+fmt.Sprint(line)+topic, 10_000), number(fmt.Sprint(line)+topic+part, 300))
	}
	writeJSON(w, http.StatusOK, map[string]any{"topic": topic, "part": part, "text": b.String()})
}

// number is a stable number below limit for a text, so that the shop answers the
// same question the same way.
func number(text string, limit uint32) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return fmt.Sprint(h.Sum32() % limit)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) //nolint:errchkjson // a client that is gone needs no answer
}
