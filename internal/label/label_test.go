package label

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestOf(t *testing.T) {
	t.Parallel()
	s := NewSet(prometheus.NewPedanticRegistry(), []string{"acme"})
	for _, c := range []struct {
		values     *Values
		name, want string
	}{
		{s.Agents, "support", "support"},
		{s.Agents, "", Other},
		{s.Agents, strings.Repeat("x", 10_000), Other},
		{s.Agents, "a\xff", Other},
		{s.Agents, "größe", "größe"},
		{s.Tools, Unknown, Unknown},
		{s.Tenants, "acme", "acme"},
		{s.Tenants, "globex", Other},
	} {
		if got := c.values.Of(c.name); got != c.want {
			t.Errorf("Of(%.20q) = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOverflow(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	s := NewSet(reg, nil)
	for i := range MaxModels + 7 {
		s.Models.Of(fmt.Sprint("model-", i))
		s.Tenants.Of(fmt.Sprint("tenant-", i))
	}
	if got := s.Models.Of("model-0"); got != "model-0" {
		t.Errorf("the first model has become %q", got)
	}
	want := `
# HELP loopd_label_overflow_total Observations that count as "_other", because their label has all the values that it may have.
# TYPE loopd_label_overflow_total counter
loopd_label_overflow_total{label="agent"} 0
loopd_label_overflow_total{label="model"} 7
loopd_label_overflow_total{label="tenant"} 0
loopd_label_overflow_total{label="tool"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "loopd_label_overflow_total"); err != nil {
		t.Error(err)
	}
}
