package openai_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func newClient(baseURL string, tuning providertest.Tuning) providertest.Provider {
	return openai.New(openai.Config{
		APIKey: providertest.Key, BaseURL: baseURL + "/v1", FirstByteTimeout: tuning.FirstByteTimeout,
		IdleTimeout: tuning.IdleTimeout, MaxResponseBytes: tuning.MaxResponseBytes,
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	// A whole event with a finish reason: what may follow is only the usage.
	finished := regexp.MustCompile(`(?m)^data: .*"finish_reason":"[a-z_]+".*}$`)
	providertest.Run(t, providertest.Suite{
		New:        newClient,
		Recordings: os.DirFS("testdata"),
		Want:       wants,
		Traits:     traits,
		Absent:     absent,
		Stream:     "openai/chat-parallel-tools-stream-2",
		Word:       "sum",
		Whole:      finished.MatchString,
	})
}
