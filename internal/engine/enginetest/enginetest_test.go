package enginetest_test

import (
	"testing"

	"github.com/loopd/loopd/internal/engine/enginetest"
)

func TestFakeConforms(t *testing.T) {
	t.Parallel()
	enginetest.Conformance(t, func(*testing.T) enginetest.Store { return enginetest.NewFake() })
}
