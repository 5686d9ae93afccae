package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// What encodeTexts writes is, byte for byte, what pgx writes without it, and Postgres
// reads it as what it was.
func TestTextArraysAreEncodedAsUsual(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn, err := s.appends.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	usual := pgtype.NewMap()
	for name, texts := range map[string][]string{
		"nil": nil, "none": {}, "one": {"a"}, "empty": {""}, "several": {"", "x,\"y\"", "NULL", "{}", "\u00e4\U0001f600", strings.Repeat("z", 70_000)},
	} {
		got, err := conn.Conn().TypeMap().Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, texts, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := usual.Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, texts, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		diff(t, name, got, want)
		var back []string
		if err := conn.QueryRow(t.Context(), "SELECT $1::text[]", texts).Scan(&back); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(back, texts) {
			t.Errorf("%s: came back as %q", name, back)
		}
	}
	if _, ok := conn.Conn().TypeMap().PlanEncode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, []string{}).(textsPlan); !ok {
		t.Error("the connection for appends encodes text arrays in another way: the test proves nothing")
	}
}
