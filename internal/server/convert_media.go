package server

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// maxInline is how much data the attachments of a run may have together. The protos
// publish it. Providers take 20 to 32 MB in base64, but each request of the run
// carries it again.
const maxInline = 8 << 20

// attachmentsOf reads what goes with a run's input. Each model that may see it must
// be known to read it: prices are those of all of them.
func attachmentsOf(list []*loopdv1.Attachment, prices []loop.Price) ([]loop.Part, error) {
	var parts []loop.Part
	var faults []fieldError
	inline := 0
	for i, a := range list {
		path := fmt.Sprintf("attachments[%d]", i)
		part := partOf(a)
		parts = append(parts, part)
		inline += len(part.Media.Data)
		if part.Media.Type == "text/plain" && !utf8.Valid(part.Media.Data) {
			faults = append(faults, fieldError{path + ".data", "text/plain must be UTF-8: convert it"})
		}
		for _, price := range prices {
			if !slices.Contains(price.Reads, part.Kind) {
				faults = append(faults, fieldError{path, fmt.Sprintf("model %s is not known to read %ss: leave the attachment out, or use an agent whose models, fallback models included, read it", price.Model, part.Kind)})
			}
		}
	}
	if inline > maxInline {
		faults = append(faults, fieldError{"attachments", fmt.Sprintf("they have %d bytes of data together, and may have %d: send some of them as uri", inline, maxInline)})
	}
	if len(faults) > 0 {
		return nil, invalid(faults...)
	}
	return parts, nil
}

func partOf(a *loopdv1.Attachment) loop.Part {
	kind := loop.PartDocument
	if strings.HasPrefix(a.GetMediaType(), "image/") {
		kind = loop.PartImage
	}
	return loop.Part{Kind: kind, Media: &loop.Media{Type: a.GetMediaType(), Name: a.GetFileName(), Data: a.GetData(), URL: a.GetUri()}}
}

func mediaProto(m *loop.Media, size int64) *loopdv1.Media {
	return &loopdv1.Media{MediaType: m.Type, FileName: m.Name, Uri: m.URL, SizeBytes: size}
}

// showSizes writes the sizes of attachments into the body of a first event, where
// their data would be.
func showSizes(created map[string]any, sizes map[int]int64) {
	spec, _ := created["spec"].(map[string]any)
	list, _ := spec["attachments"].([]any)
	for i, item := range list {
		part, _ := item.(map[string]any)
		if media, ok := part["media"].(map[string]any); ok {
			delete(media, "data")
			if sizes[i] > 0 {
				media["size_bytes"] = float64(sizes[i])
			}
		}
	}
}

func deltaProto(b postgres.DeltaBatch, gap bool) *loopdv1.Delta {
	d := &loopdv1.Delta{ModelCall: clampInt32(b.Call), Fragments: make([]*loopdv1.Fragment, len(b.Fragments)), Gap: gap}
	for i, f := range b.Fragments {
		d.Fragments[i] = &loopdv1.Fragment{Kind: string(f.Kind), Text: f.Text, Tool: f.Tool}
	}
	return d
}
