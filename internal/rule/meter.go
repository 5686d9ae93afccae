package rule

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// meter charges for the operations that CEL counts as one although they read, or
// write, the whole of a value: it takes most of those on arguments, whose types
// it learns only now, for operations on numbers.
type meter struct{}

// CallCost is the cost of an operation that has been done, or nil for CEL's own.
func (meter) CallCost(function, _ string, operands []ref.Val, _ ref.Val) *uint64 {
	var units uint64
	switch function {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		units = maxCost
		for _, v := range operands { // the smaller one ends the comparison
			units = min(units, weight(v))
		}
	case operators.Add:
		for _, v := range operands {
			if _, list := v.(traits.Lister); !list { // lists are joined without a copy
				units += weight(v)
			}
		}
	case operators.In, operators.OldIn, "math.@max", "math.@min",
		overloads.TypeConvertInt, overloads.TypeConvertUint, overloads.TypeConvertDouble, overloads.TypeConvertBool,
		overloads.TypeConvertString, overloads.TypeConvertBytes, overloads.TypeConvertTimestamp, overloads.TypeConvertDuration:
		for _, v := range operands {
			if _, keyed := v.(traits.Mapper); !keyed { // a map finds a key at once
				units += weight(v)
			}
		}
	case overloads.Size:
		units = 1
		if text, ok := operands[0].(types.String); ok {
			units = weight(text)
		}
	default:
		return nil
	}
	units = max(units, 1)
	return &units
}

// weight is how much of a value there is: one for each value in it, and one for
// each ten bytes of text.
func weight(v ref.Val) uint64 {
	units := uint64(1)
	switch v := v.(type) {
	case types.String:
		units += uint64(len(v)) / 10
	case types.Bytes:
		units += uint64(len(v)) / 10
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True && units < maxCost; {
			key := it.Next()
			units += weight(key)
			if member, ok := v.Find(key); ok {
				units += weight(member)
			}
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True && units < maxCost; {
			units += weight(it.Next())
		}
	}
	return units
}
