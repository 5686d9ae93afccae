package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// The data of attachments is in a table of its own, so that it is read by whoever
// drives a run and not by those who list its events. The body of the first event
// has the rest of each attachment.

// withoutData returns the spec as the first event keeps it, and the data that its
// attachments had, with their places in the list.
func withoutData(spec loop.Spec) (bare loop.Spec, places []int32, data [][]byte) {
	spec.Attachments = slices.Clone(spec.Attachments)
	for i, part := range spec.Attachments {
		if part.Media == nil || len(part.Media.Data) == 0 {
			continue
		}
		places, data = append(places, int32(i)), append(data, part.Media.Data)
		media := *part.Media
		media.Data = nil
		spec.Attachments[i].Media = &media
	}
	return spec, places, data
}

// dataIsApart reports whether the attachment has data that the event does not hold.
func dataIsApart(part loop.Part) bool {
	return part.Media != nil && part.Media.URL == "" && len(part.Media.Data) == 0
}

// attach puts the data of a run's attachments into its first event.
func (s *Store) attach(ctx context.Context, run loop.RunRef, events []loop.Event) error {
	if len(events) == 0 {
		return nil
	}
	created, ok := events[0].Body.(loop.Created)
	if !ok || !slices.ContainsFunc(created.Spec.Attachments, dataIsApart) {
		return nil
	}
	rows, err := s.q.ListAttachments(ctx, db.ListAttachmentsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return wrap("read the attachments of run "+run.ID, err)
	}
	list := created.Spec.Attachments // decoded for this caller
	for _, row := range rows {
		if int(row.Place) < len(list) && dataIsApart(list[row.Place]) {
			list[row.Place].Media.Data = row.Data
		}
	}
	if i := slices.IndexFunc(list, dataIsApart); i >= 0 {
		return fmt.Errorf("attachment %d of run %s has no data: %w", i, run.ID, loop.ErrImpossible)
	}
	return nil
}

// AttachmentSizes returns the sizes in bytes of the attachments whose data came with
// the run, by their index in loop.Spec.Attachments. It does not read the data.
func (s *Store) AttachmentSizes(ctx context.Context, run loop.RunRef) (map[int]int64, error) {
	rows, err := s.q.ListAttachmentSizes(ctx, db.ListAttachmentSizesParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return nil, wrap("read the sizes of the attachments of run "+run.ID, err)
	}
	sizes := make(map[int]int64, len(rows))
	for _, row := range rows {
		sizes[int(row.Place)] = row.Size
	}
	return sizes, nil
}
