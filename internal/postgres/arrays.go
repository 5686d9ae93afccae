package postgres

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// encodeArrays has a connection write arrays without allocations for each element, of
// which a group of appends has thousands. It writes what pgx writes itself.
func encodeArrays(conn *pgx.Conn) {
	types, room := conn.TypeMap(), &memory{}
	replace(types, pgtype.TextArrayOID, elements[string]{room, pgtype.TextOID, textSize, appendText})
	replace(types, pgtype.TimestamptzArrayOID, elements[time.Time]{room, pgtype.TimestamptzOID, fixed[time.Time](8), appendTime})
	replace(types, pgtype.Int8ArrayOID, elements[int64]{room, pgtype.Int8OID, fixed[int64](8), appendInt64})
	replace(types, pgtype.Int4ArrayOID, elements[int32]{room, pgtype.Int4OID, fixed[int32](4), appendInt32})
	replace(types, pgtype.BoolArrayOID, elements[bool]{room, pgtype.BoolOID, fixed[bool](1), appendBool})
}

func replace[T any](types *pgtype.Map, oid uint32, plan elements[T]) {
	if usual, ok := types.TypeForOID(oid); ok {
		types.RegisterType(&pgtype.Type{Name: usual.Name, OID: usual.OID, Codec: arrayCodec[T]{usual.Codec, plan}})
	}
}

// arrayCodec is the usual codec of an array, but for values of the type []T.
type arrayCodec[T any] struct {
	pgtype.Codec
	plan elements[T]
}

// PlanEncode implements pgtype.Codec.
func (c arrayCodec[T]) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]T); ok && format == pgtype.BinaryFormatCode {
		return c.plan
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

// elements is how arrays of one type are written.
type elements[T any] struct {
	*memory
	oid  uint32      // of an element's type
	size func(T) int // of an element, in bytes
	add  func(buf []byte, element T) []byte
}

// arrayHeader is the size of what stands before the elements, and before each of them.
const (
	arrayHeader   = 5 * 4
	elementHeader = 4
)

// Encode appends the binary form of an array: dimensions, whether it has nulls, the type
// of its elements, their number and the first index, and then each with its length.
func (e elements[T]) Encode(value any, buf []byte) ([]byte, error) {
	array, _ := value.([]T)
	if array == nil {
		return nil, nil
	}
	size := arrayHeader
	for _, element := range array {
		size += elementHeader + e.size(element)
	}
	buf = appendUint32s(e.grow(buf, size), 1, 0, e.oid, length(len(array)), 1)
	for _, element := range array {
		buf = e.add(binary.BigEndian.AppendUint32(buf, length(e.size(element))), element)
	}
	return buf, nil
}

// memory is where a connection keeps the parameters that it is about to send. pgx throws
// them away after each statement, and to grow anew to the half a megabyte of a group,
// step by step, took a sixth of all that was allocated.
type memory struct{ kept []byte }

// mostKept bounds what a connection keeps: more than the parameters of a usual group.
const mostKept = 2 << 20

// grow returns buf with room for so many bytes. buf holds all parameters of a statement so
// far, also when it is in the memory already: whatever is written over is what stood there.
func (m *memory) grow(buf []byte, more int) []byte {
	size := len(buf) + more
	switch {
	case size <= cap(buf):
		return buf
	case size > mostKept:
		return slices.Grow(buf, more)
	case size > cap(m.kept):
		m.kept = make([]byte, 0, min(2*size, mostKept))
	}
	return append(m.kept[:0], buf...)
}

func appendUint32s(buf []byte, values ...uint32) []byte {
	for _, v := range values {
		buf = binary.BigEndian.AppendUint32(buf, v)
	}
	return buf
}

// length is a length as the protocol has it. What is longer than it can say is refused by
// the server, as the message is then longer as well.
func length(n int) uint32 { return uint32(min(n, math.MaxInt32)) }

// fixed is the size of elements that all have the same.
func fixed[T any](size int) func(T) int { return func(T) int { return size } }

func textSize(s string) int { return len(s) }

func appendText(buf []byte, s string) []byte { return append(buf, s...) }

func appendInt64(buf []byte, n int64) []byte { return binary.BigEndian.AppendUint64(buf, uint64(n)) }

func appendInt32(buf []byte, n int32) []byte { return binary.BigEndian.AppendUint32(buf, uint32(n)) }

func appendBool(buf []byte, b bool) []byte {
	if b {
		return append(buf, 1)
	}
	return append(buf, 0)
}

// year2000 is where Postgres begins to count, in microseconds since 1970.
const year2000 = 946_684_800_000_000

// appendTime drops what is less than a microsecond, as pgx does.
func appendTime(buf []byte, t time.Time) []byte {
	return appendInt64(buf, t.Unix()*1_000_000+int64(t.Nanosecond())/1000-year2000)
}
