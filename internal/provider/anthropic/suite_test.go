package anthropic_test

import (
	"os"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/provider/anthropic"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func newClient(baseURL string, tuning providertest.Tuning) providertest.Provider {
	return anthropic.New(anthropic.Config{
		APIKey: providertest.Key, BaseURL: baseURL, FirstByteTimeout: tuning.FirstByteTimeout,
		IdleTimeout: tuning.IdleTimeout, MaxResponseBytes: tuning.MaxResponseBytes,
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		New:        newClient,
		Recordings: os.DirFS("testdata"),
		Want:       wants,
		Traits:     traits,
		Stream:     "text-stream",
		Word:       "Hello",
		Whole: func(sent string) bool {
			_, end, found := strings.Cut(sent, `{"type":"message_stop"`)
			return found && strings.Contains(end, "}")
		},
	})
}
