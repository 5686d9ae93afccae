package postgres

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

func noteOwner() NoteOwner {
	return NoteOwner{Tenant: tenant, Agent: "agents/support", Subject: "customer 7"}
}

func putNote(t *testing.T, s *Store, owner NoteOwner, key, text string) {
	t.Helper()
	if err := s.PutNote(t.Context(), owner, key, text); err != nil {
		t.Fatal(err)
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	me := noteOwner()
	putNote(t, s, me, "address", "Lives in Bern.")
	before, err := s.GetNote(t.Context(), me, "address")
	if err != nil {
		t.Fatal(err)
	}
	putNote(t, s, me, "address", "Lives in "+hostile)
	after, err := s.GetNote(t.Context(), me, "address")
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "text", after.Text, "Lives in "+strings.ReplaceAll(hostile, "\x00", "\ufffd"))
	if before.UpdatedAt.IsZero() || !after.UpdatedAt.After(before.UpdatedAt) {
		t.Errorf("updated at %s, then at %s", before.UpdatedAt, after.UpdatedAt)
	}
	for _, other := range []NoteOwner{
		{"globex", me.Agent, me.Subject}, {me.Tenant, "agents/sales", me.Subject}, {me.Tenant, me.Agent, ""},
	} {
		_, err := s.GetNote(t.Context(), other, "address")
		wantErr(t, err, loop.ErrNotFound)
		if found, err := s.SearchNotes(t.Context(), other, "lives"); err != nil || len(found) != 0 {
			t.Errorf("%+v finds %v, %v", other, found, err)
		}
	}
	putNote(t, s, me, "address", "")
	_, err = s.GetNote(t.Context(), me, "address")
	wantErr(t, err, loop.ErrNotFound)
	putNote(t, s, me, "address", "") // nothing to forget
}

func TestSearchNotes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	me := noteOwner()
	putNote(t, s, me, "refunds", "Refund, refund and refund again.")
	putNote(t, s, me, "orders", "One refund for ORD-4892; prefers e-mail. NUL \x00")
	putNote(t, s, me, "phone", "Never call before noon.")
	for query, want := range map[string]string{
		"REFUND":               "refunds orders ",
		"refund e-mail":        "orders ",
		`"before noon"`:        "phone ",
		"refund -again":        "orders ",
		"noon or ORD-4892":     "orders phone ",
		"phone":                "phone ", // keys count
		"nothing":              "",
		"":                     "",
		"\x00 ' \\ & | ! ( :*": "",
	} {
		found, err := s.SearchNotes(t.Context(), me, query)
		if err != nil {
			t.Errorf("%q: %v", query, err)
		}
		got := ""
		for _, note := range found {
			got += note.Key + " "
		}
		diff(t, fmt.Sprintf("%q", query), got, want)
	}
	for i := range 30 {
		putNote(t, s, me, fmt.Sprint(i), "common")
	}
	if found, err := s.SearchNotes(t.Context(), me, "common"); err != nil || len(found) != 20 {
		t.Errorf("found %d, %v, want 20", len(found), err)
	}
}

func TestBoundsOfNotes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	me := noteOwner()
	long, name := strings.Repeat("x", maxNoteBytes), strings.Repeat("k", maxNoteName)
	putNote(t, s, me, name, long)
	for _, test := range []struct {
		name      string
		owner     NoteOwner
		key, text string
		want      string
	}{
		{"text", me, "a", long + "x", "the text has 32769 bytes, 32768 are allowed"},
		{"text that grows", me, "a", strings.Repeat("\x00", 20_000), "the text has 60000 bytes, 32768 are allowed"},
		{"key", me, name + "k", "x", "the key has 257 bytes, 256 are allowed"},
		{"no key", me, "", "x", "the key is empty"},
		{"subject", NoteOwner{me.Tenant, me.Agent, name + "s"}, "a", "x", "the subject has 257 bytes, 256 are allowed"},
	} {
		err := s.PutNote(t.Context(), test.owner, test.key, test.text)
		if !errors.Is(err, ErrNoteBound) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error = %v, want %q", test.name, err, test.want)
		}
	}

	// However many write at once, there are never more than allowed.
	const query = `INSERT INTO notes (tenant_id, agent, subject, key, text)
		SELECT $1, $2, $3, 'n' || n, 'x' FROM generate_series(1, $4::integer) n`
	const left = 5
	if _, err := s.pool.Exec(t.Context(), query, me.Tenant, me.Agent, me.Subject, maxNotes-1-left); err != nil {
		t.Fatal(err)
	}
	var put atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			switch err := s.PutNote(t.Context(), me, fmt.Sprint("new ", i), "x"); {
			case err == nil:
				put.Add(1)
			case !errors.Is(err, ErrNoteBound) || !strings.Contains(err.Error(), "1000 notes"):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := scalar[int](t, s, "SELECT count(*) FROM notes"); n != maxNotes || put.Load() != left {
		t.Errorf("%d notes, %d of them new, want %d and %d", n, put.Load(), maxNotes, left)
	}
	putNote(t, s, me, "n1", "may be written over")
	putNote(t, s, NoteOwner{me.Tenant, me.Agent, "other"}, "a", "others have bounds of their own")
	putNote(t, s, me, "n1", "")
	putNote(t, s, me, "n0", "there is room again")
}
