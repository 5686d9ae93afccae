package demo

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
)

// ToolServer is the shop behind the demo's tools. Its inventory answers 429 for
// ever, as the one did that this all began with.
func ToolServer() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Query().Get("order_id")
		writeJSON(w, http.StatusOK, map[string]any{
			"order_id": id, "customer_id": "CUST-" + number(id, 900), "status": "shipped",
			"items":    []map[string]any{{"sku": "SKU-" + number(id, 5000), "quantity": 1}},
			"shipment": "SHIP-" + number(id, 90000),
		})
	})
	mux.HandleFunc("GET /shipments", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"shipment": r.URL.Query().Get("shipment"), "carrier": "Northline", "location": "Hamburg hub", "arrives": "Thursday",
		})
	})
	mux.HandleFunc("GET /customers", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"customer_id": r.URL.Query().Get("customer_id"), "name": "Ada Lindqvist", "tier": "gold"})
	})
	mux.HandleFunc("GET /inventory", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		writeJSON(w, http.StatusTooManyRequests, map[string]any{"error": "rate limit exceeded"})
	})
	mux.HandleFunc("GET /reports", func(w http.ResponseWriter, r *http.Request) {
		page := r.URL.Query().Get("page")
		var b strings.Builder
		for line := range 120 {
			fmt.Fprintf(&b, "page %s, line %d: returns of %s units, mostly unopened\n", page, line, number(page+fmt.Sprint(line), 300))
		}
		writeJSON(w, http.StatusOK, map[string]any{"page": page, "more": true, "text": b.String()})
	})
	return mux
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
