// Package label keeps the values of metric labels few. A label's values come from a
// registry, a price book or an operator's list, never from a model or a client, and
// even then only so many get series of their own.
package label

import (
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// Other stands for all names beyond the most that have series of their own.
	Other = "_other"
	// Unknown stands for a name that loopd does not have, such as a tool that a model made up.
	Unknown = "_unknown"
)

// How many values each label has at the most, Other not counted. A histogram of fifteen
// buckets by agent and outcome is 1,600 series at 25 agents, which one Prometheus keeps
// for a hundred replicas.
const (
	MaxAgents  = 25
	MaxModels  = 15
	MaxTools   = 60
	MaxTenants = 100
)

// maxLength is longer than any name that a registry accepts, in bytes.
const maxLength = 128

// Set holds the labels of one process, so that all its packages give a name the same
// value. It is safe for concurrent use.
type Set struct {
	Agents, Models, Tools, Tenants *Values
}

// NewSet makes the labels. tenants are those that have series of their own: a tenant is
// somebody's name, so that nobody is shown who was not listed. What did not fit is
// counted in loopd_label_overflow_total, if reg is not nil.
func NewSet(reg prometheus.Registerer, tenants []string) *Set {
	overflow := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "loopd_label_overflow_total", Help: `Observations that count as "_other", because their label has all the values that it may have.`,
	}, []string{"label"})
	if reg != nil {
		reg.MustRegister(overflow)
	}
	values := func(name string, most int) *Values {
		return &Values{most: most, overflow: overflow.WithLabelValues(name), known: map[string]bool{}}
	}
	s := &Set{Agents: values("agent", MaxAgents), Models: values("model", MaxModels), Tools: values("tool", MaxTools), Tenants: values("tenant", MaxTenants)}
	for _, t := range tenants {
		s.Tenants.Of(t)
	}
	s.Tenants.close()
	return s
}

// Values are the values of one label: the first names that ask, until there are as many
// as there may be.
type Values struct {
	overflow prometheus.Counter

	mu    sync.Mutex
	most  int
	shut  bool // whoever is not known is left out on purpose
	known map[string]bool
}

// Of is the label's value for a name: the name itself, or Other. Unknown and Other
// stand for themselves and take nobody's place.
func (v *Values) Of(name string) string {
	if name == Other || name == Unknown {
		return name
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known[name] {
		return name
	}
	if v.shut {
		return Other
	}
	if name == "" || len(name) > maxLength || !utf8.ValidString(name) || len(v.known) >= v.most {
		v.overflow.Inc()
		return Other
	}
	v.known[name] = true
	return name
}

// close keeps all other names out. They are no overflow: nobody wanted them shown.
func (v *Values) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = true
}
