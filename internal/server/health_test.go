package server_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/server"
)

func TestReadyzSaysHowEverythingStands(t *testing.T) {
	t.Parallel()
	var dead error
	conditions := []server.Condition{
		{Name: "lease"}, {Name: "provider shaky", Fault: "its circuit is open", Informs: true},
	}
	w := setup(t, func(c *server.Config) {
		c.Alive = func() error { return dead }
		c.Conditions = func() []server.Condition { return conditions }
	})
	answer := w.admin("/readyz?verbose")
	lines := strings.Split(strings.TrimSpace(answer.Body.String()), "\n")
	want := []string{"[+]draining ok no", "[+]lease ok", "[!]provider shaky its circuit is open", "[+]database ok", "[+]schema ok", "ready"}
	for i, line := range lines {
		if i >= len(want) || !strings.HasPrefix(line, want[i]) {
			t.Fatalf("/readyz?verbose answered\n%s", answer.Body)
		}
	}
	if answer.Code != http.StatusOK || len(lines) != len(want) {
		t.Errorf("a provider that is down makes it answer %d, %d lines", answer.Code, len(lines))
	}
	if body := w.admin("/readyz").Body.String(); body != "ready\n" {
		t.Errorf("/readyz answered %q", body)
	}

	conditions[0].Fault = "gone"
	if answer := w.admin("/readyz"); answer.Code != http.StatusServiceUnavailable || answer.Body.String() != "not ready: lease: gone\n" {
		t.Errorf("/readyz with a fault answered %d %q", answer.Code, answer.Body)
	}
	if answer := w.admin("/healthz"); answer.Code != http.StatusOK {
		t.Errorf("/healthz answered %d", answer.Code)
	}
	dead = errors.New("a loop is stuck")
	if answer := w.admin("/healthz"); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "a loop is stuck") {
		t.Errorf("/healthz of a dead process answered %d %q", answer.Code, answer.Body)
	}
}
