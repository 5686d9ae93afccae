package postgres

import (
	"encoding/binary"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// encodeTexts has a connection write arrays of texts without an allocation for each
// element, of which a group of appends has thousands. It writes what pgx writes itself.
func encodeTexts(conn *pgx.Conn) {
	types := conn.TypeMap()
	usual, ok := types.TypeForOID(pgtype.TextArrayOID)
	if !ok {
		return
	}
	types.RegisterType(&pgtype.Type{Name: usual.Name, OID: usual.OID, Codec: textsCodec{usual.Codec}})
}

// textsCodec is the codec of text[], but for values of the type []string.
type textsCodec struct{ pgtype.Codec }

// PlanEncode implements pgtype.Codec.
func (c textsCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]string); ok && format == pgtype.BinaryFormatCode {
		return textsPlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

type textsPlan struct{}

// Encode appends the binary form of an array: dimensions, whether it has nulls, the type
// of its elements, their number and the first index, and then each with its length.
func (textsPlan) Encode(value any, buf []byte) ([]byte, error) {
	texts, _ := value.([]string)
	if texts == nil {
		return nil, nil
	}
	buf = appendUint32s(buf, 1, 0, pgtype.TextOID, size(len(texts)), 1)
	for _, text := range texts {
		buf = append(binary.BigEndian.AppendUint32(buf, size(len(text))), text...)
	}
	return buf, nil
}

func appendUint32s(buf []byte, values ...uint32) []byte {
	for _, v := range values {
		buf = binary.BigEndian.AppendUint32(buf, v)
	}
	return buf
}

// size is a length as the protocol has it. What is longer than it can say is refused by
// the server, as the message is then longer as well.
func size(n int) uint32 { return uint32(min(n, math.MaxInt32)) }
