package responses_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/loopd/loopd/internal/provider/providertest"
	"github.com/loopd/loopd/internal/provider/responses"
)

func newClient(baseURL string, tuning providertest.Tuning) providertest.Provider {
	return responses.New(responses.Config{
		APIKey: providertest.Key, BaseURL: baseURL + "/v1", FirstByteTimeout: tuning.FirstByteTimeout,
		IdleTimeout: tuning.IdleTimeout, MaxResponseBytes: tuning.MaxResponseBytes,
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	ended := regexp.MustCompile(`(?m)^data: .*"type":"response\.(completed|incomplete)".*}$`)
	providertest.Run(t, providertest.Suite{
		New:        newClient,
		Recordings: os.DirFS("testdata"),
		Want:       wants,
		Traits:     traits,
		Absent:     absent,
		Stream:     "composed/responses-text-stream",
		Word:       "product",
		Whole:      ended.MatchString,
	})
}
