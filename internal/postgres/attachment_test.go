package postgres

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func attached() loop.Spec {
	s := spec()
	s.Attachments = []loop.Part{
		{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Name: "box.png", Data: bytes.Repeat([]byte{0x89, 0, 0xff}, 50_000)}},
		{Kind: loop.PartDocument, Media: &loop.Media{Type: "application/pdf", URL: "https://shop.example/terms.pdf"}},
		{Kind: loop.PartDocument, Media: &loop.Media{Type: "text/plain", Data: []byte("a note")}},
	}
	return s
}

// TestAttachmentsAreReadByWhoDrivesTheRun and by nobody who lists events.
func TestAttachmentsAreReadByWhoDrivesTheRun(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref, want := newRef(), attached()
	if _, _, err := s.CreateRun(t.Context(), ref, want, Idempotency{}); err != nil {
		t.Fatal(err)
	}

	lease := claimOne(t, s, "w1")
	journal, err := s.Load(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(loop.Created{Spec: want}, journal.Events[0].Body); diff != "" {
		t.Errorf("the worker's first event (-want +got):\n%s", diff)
	}
	pinned, err := s.GetSpec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, pinned); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}

	events, err := s.Events(t.Context(), ref, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	bare, _, _ := withoutData(want)
	if diff := cmp.Diff(loop.Created{Spec: bare}, events[0].Body); diff != "" {
		t.Errorf("the reader's first event (-want +got):\n%s", diff)
	}
	sizes, err := s.AttachmentSizes(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int64{0: 150_000, 2: 6}, sizes); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	if len(want.Attachments[0].Media.Data) != 150_000 {
		t.Error("creating the run emptied the caller's attachments")
	}
	var stored int64
	err = s.pool.QueryRow(t.Context(), "SELECT octet_length(body::text) FROM events WHERE run_id = $1 AND seq = 1", ref.ID).Scan(&stored)
	if err != nil || stored > 10_000 {
		t.Errorf("the body of the first event has %d bytes, %v; the data is to be stored once, beside it", stored, err)
	}
}

func TestAttachmentsNeverChange(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := newRef()
	if _, _, err := s.CreateRun(t.Context(), ref, attached(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"UPDATE attachments SET data = ''", "DELETE FROM attachments", "TRUNCATE attachments"} {
		if _, err := s.pool.Exec(t.Context(), statement); sqlState(err) != "23001" {
			t.Errorf("%s: %v, want a refusal", statement, err)
		}
	}
}

// TestAttachmentsThatAreGone end a run instead of asking the model about nothing.
func TestAttachmentsThatAreGone(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := newRef()
	if _, _, err := s.CreateRun(t.Context(), ref, attached(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "ALTER TABLE attachments DISABLE TRIGGER USER; DELETE FROM attachments WHERE place = 2"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Load(t.Context(), loop.Lease{Run: ref})
	wantErr(t, err, loop.ErrImpossible)
}
