package postgres

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// What encodeArrays writes is, byte for byte, what pgx writes without it, and Postgres
// reads it as what it was.
func TestArraysAreEncodedAsUsual(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	pooled, err := s.appends.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	conn := pooled.Conn()
	encodesAsUsual(t, conn, "text", pgtype.TextArrayOID, []string{"", "x,\"y\"", "NULL", "{}", "\u00e4\U0001f600", strings.Repeat("z", 70_000)})
	encodesAsUsual(t, conn, "bigint", pgtype.Int8ArrayOID, []int64{0, -1, 255, math.MaxInt64, math.MinInt64})
	encodesAsUsual(t, conn, "int", pgtype.Int4ArrayOID, []int32{0, -1, 255, math.MaxInt32, math.MinInt32})
	encodesAsUsual(t, conn, "bool", pgtype.BoolArrayOID, []bool{true, false})
	encodesAsUsual(t, conn, "timestamptz", pgtype.TimestamptzArrayOID, []time.Time{
		{}, time.Unix(0, 0).UTC(), time.Date(1999, 12, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(2026, 11, 30, 1, 2, 3, 4000, time.UTC),
	})
}

func encodesAsUsual[T comparable](t *testing.T, conn *pgx.Conn, name string, oid uint32, several []T) {
	t.Helper()
	usual := pgtype.NewMap()
	for _, array := range [][]T{nil, {}, several[:1], several} {
		got, err := conn.TypeMap().Encode(oid, pgtype.BinaryFormatCode, array, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := usual.Encode(oid, pgtype.BinaryFormatCode, array, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		diff(t, name, got, want)
		var back []T
		if err := conn.QueryRow(t.Context(), "SELECT $1::"+name+"[]", array).Scan(&back); err != nil {
			t.Fatal(err)
		}
		same := func(a, b T) bool { // the time zone that a time is read in means nothing
			at, ok := any(a).(time.Time)
			return a == b || ok && at.Equal(any(b).(time.Time))
		}
		if !slices.EqualFunc(back, array, same) {
			t.Errorf("%s: %v came back as %v", name, array, back)
		}
	}
	if _, ok := conn.TypeMap().PlanEncode(oid, pgtype.BinaryFormatCode, several).(elements[T]); !ok {
		t.Errorf("the connection for appends encodes arrays of %s in another way: the test proves nothing", name)
	}
}

// One statement after another, of all sizes: none finds another's bytes in the memory.
func TestParametersAreKeptApart(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn, err := s.appends.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	long := strings.Repeat("\u00e4", mostKept/4)
	for _, size := range []int{1, 300, 5, 40_000, 2, len(long), 300_000, 1} {
		texts := []string{"first", long[:size/2*2], "last"}
		numbers, between := make([]int64, size%1000+1), long[:size/3*2]
		numbers[0] = int64(size)
		var gotTexts, again []string
		var gotNumbers []int64
		var gotBetween string
		err := conn.QueryRow(t.Context(), "SELECT $1::text[], $2::text, $3::bigint[], $4::text[]", texts, between, numbers, texts).
			Scan(&gotTexts, &gotBetween, &gotNumbers, &again)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(gotTexts, texts) || !slices.Equal(again, texts) || !slices.Equal(gotNumbers, numbers) || gotBetween != between {
			t.Errorf("parameters of %d bytes are not what was sent", size)
		}
	}
}

// Times finer than a microsecond are cut as pgx cuts them, also before 1970.
func TestTimesAreCutAsUsual(t *testing.T) {
	t.Parallel()
	usual := pgtype.NewMap()
	for _, at := range []time.Time{time.Unix(1_800_000_000, 1999), time.Unix(-5, 1999).In(time.FixedZone("", 3600))} {
		want, err := usual.Encode(pgtype.TimestamptzOID, pgtype.BinaryFormatCode, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		diff(t, at.String(), appendTime(nil, at), want)
	}
}
