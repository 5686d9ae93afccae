package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// The bounds of notes. A search reads all notes of one owner, so that their number
// and size bound its time.
const (
	maxNotes      = 1000      // of one owner
	maxNoteBytes  = 32 * 1024 // of a text
	maxNoteName   = 256       // bytes of a key, an agent, a subject
	maxNotesFound = 20
)

// NoteOwner says whose notes are meant: what an agent knows about a subject.
type NoteOwner struct {
	Tenant  string
	Agent   string // resource name, "agents/{agent}"
	Subject string // such as a customer; may be empty
}

// Note is something that an agent wants to remember.
type Note struct {
	Key       string
	Text      string
	UpdatedAt time.Time
}

// errNoteFull: the owner has as many notes as it may have.
var errNoteFull = fmt.Errorf("%w: %d notes of one agent about one subject: forget one first, by an empty text", ErrNoteBound, maxNotes)

// GetNote reads a note. The error is loop.ErrNotFound if the owner has none of that
// key.
func (s *Store) GetNote(ctx context.Context, owner NoteOwner, key string) (Note, error) {
	row, err := s.q.GetNote(ctx, db.GetNoteParams{
		TenantID: owner.Tenant, Agent: owner.Agent, Subject: printable(owner.Subject), Key: printable(key),
	})
	return Note{Key: row.Key, Text: row.Text, UpdatedAt: row.UpdatedAt.UTC()}, wrap("read a note", err)
}

// PutNote writes a note, over an earlier one of the same key. An empty text forgets
// the note. What Postgres cannot keep in a text, NUL and invalid UTF-8, becomes
// U+FFFD. The error is ErrNoteBound, and names the bound, when the text or a name is
// too long, the key is empty, or there are too many notes.
func (s *Store) PutNote(ctx context.Context, owner NoteOwner, key, text string) error {
	owner.Subject, key, text = printable(owner.Subject), printable(key), printable(text)
	if err := checkNote(owner, key, text); err != nil {
		return err
	}
	err := s.inTx(ctx, true, func(q *db.Queries) error {
		if text == "" {
			return q.DeleteNote(ctx, db.DeleteNoteParams{TenantID: owner.Tenant, Agent: owner.Agent, Subject: owner.Subject, Key: key})
		}
		if err := q.LockNotes(ctx, db.LockNotesParams{TenantID: owner.Tenant, Agent: owner.Agent, Subject: owner.Subject}); err != nil {
			return err
		}
		put, err := q.PutNote(ctx, db.PutNoteParams{
			TenantID: owner.Tenant, Agent: owner.Agent, Subject: owner.Subject, Key: key, Text: text, MaxNotes: maxNotes,
		})
		if err == nil && put == 0 {
			err = errNoteFull
		}
		return err
	})
	return wrap("write a note", err)
}

// checkNote compares a note with the bounds.
func checkNote(owner NoteOwner, key, text string) error {
	var errs []error
	if key == "" {
		errs = append(errs, fmt.Errorf("%w: the key is empty: give one of 1 to %d bytes", ErrNoteBound, maxNoteName))
	}
	for _, name := range []struct{ what, text string }{{"key", key}, {"agent", owner.Agent}, {"subject", owner.Subject}} {
		if len(name.text) > maxNoteName {
			errs = append(errs, fmt.Errorf("%w: the %s has %d bytes, %d are allowed", ErrNoteBound, name.what, len(name.text), maxNoteName))
		}
	}
	if len(text) > maxNoteBytes {
		errs = append(errs, fmt.Errorf("%w: the text has %d bytes, %d are allowed", ErrNoteBound, len(text), maxNoteBytes))
	}
	return errors.Join(errs...)
}

// SearchNotes finds the notes that have the words of a query in their key or text, the
// best first, at most 20. The query is written as for a search engine: words,
// "phrases", or, -not. Words are compared as they are written, whatever the language,
// but for upper and lower case.
func (s *Store) SearchNotes(ctx context.Context, owner NoteOwner, query string) ([]Note, error) {
	rows, err := s.q.SearchNotes(ctx, db.SearchNotesParams{
		TenantID: owner.Tenant, Agent: owner.Agent, Subject: printable(owner.Subject), Query: printable(query), PageSize: maxNotesFound,
	})
	if err != nil {
		return nil, wrap("search notes", err)
	}
	notes := make([]Note, len(rows))
	for i, row := range rows {
		notes[i] = Note{Key: row.Key, Text: row.Text, UpdatedAt: row.UpdatedAt.UTC()}
	}
	return notes, nil
}
