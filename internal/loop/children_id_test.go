package loop

import (
	"strings"
	"testing"
)

// What is ordered by id keeps a tree together.
func TestChildIDsBeginAsTheirParents(t *testing.T) {
	t.Parallel()
	parent := RunRef{Tenant: "acme", ID: "0190a000-1234-7000-8000-00000000000f"}
	one, two := childID(parent, "c1-1"), childID(parent, "c1-2")
	grandchild := childID(RunRef{Tenant: "acme", ID: one}, "c1-1")
	for _, id := range []string{one, two, grandchild} {
		if !strings.HasPrefix(id, "0190a000-1234-8") || len(id) != len(parent.ID) {
			t.Errorf("the child of %s is %s", parent.ID, id)
		}
	}
	if one == two || one == grandchild || one != childID(parent, "c1-1") {
		t.Errorf("the ids do not follow from the call: %s, %s, %s", one, two, grandchild)
	}
	if id := childID(RunRef{Tenant: "acme", ID: "run"}, "c1-1"); len(id) != len(parent.ID) {
		t.Errorf("the child of a run with another id is %s", id)
	}
}
