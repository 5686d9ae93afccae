package gemini_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/provider/gemini"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// recordings are answers to the streaming method and to its plain sibling.
var recordings = os.DirFS("testdata/answers")

func newGemini(baseURL string, tuning providertest.Tuning) *gemini.Client {
	return gemini.New(gemini.Config{
		APIKey: providertest.Key, BaseURL: baseURL + "/v1beta", FirstByteTimeout: tuning.FirstByteTimeout,
		IdleTimeout: tuning.IdleTimeout, MaxResponseBytes: tuning.MaxResponseBytes,
	})
}

func newClient(baseURL string, tuning providertest.Tuning) providertest.Provider {
	return newGemini(baseURL, tuning)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Suite{
		New:        newClient,
		Recordings: recordings,
		Want:       wants,
		Traits:     traits,
		Absent:     absent,
		NoCallIDs:  true,
		Stream:     "text-stream",
		Word:       "Portuguese",
		Whole:      isWhole,
	})
}

// isWhole reports whether a stream that stops after sent has an event that names
// why the answer ended, and no half event after it.
func isWhole(sent string) bool {
	ended := false
	for line := range strings.Lines(sent) {
		data, ok := strings.CutPrefix(line, "data:")
		if ok && !json.Valid([]byte(data)) {
			return false
		}
		ended = ended || ok && strings.Contains(data, `"finishReason"`)
	}
	return ended
}
