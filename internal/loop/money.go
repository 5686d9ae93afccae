package loop

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// USD is an amount of money in pico-dollars: 1 USD = 1e12. An int64 holds about
// nine million dollars, and the cheapest published token price (fractions of a
// cent per million) is still a whole number of pico-dollars, so no sum in loopd
// ever rounds except where a comment says so.
type USD int64

// The units that prices and limits are written in.
const (
	PicoUSD   USD = 1
	NanoUSD       = 1_000 * PicoUSD
	MicroUSD      = 1_000 * NanoUSD
	MilliUSD      = 1_000 * MicroUSD
	OneUSD        = 1_000 * MilliUSD
	usdDigits     = 12
	usdLength     = len("-9223372.036854775808") // of the longest
)

// String writes the amount as a decimal number of dollars without trailing
// zeros, exactly: "0.0213", "1", "-0.5".
func (u USD) String() string { return string(u.append(make([]byte, 0, usdLength))) }

// append writes what String returns.
func (u USD) append(b []byte) []byte {
	v := uint64(u)
	if u < 0 {
		b, v = append(b, '-'), uint64(-u)
	}
	b = strconv.AppendUint(b, v/uint64(OneUSD), 10)
	frac := v % uint64(OneUSD)
	if frac == 0 {
		return b
	}
	point := len(b)
	b = strconv.AppendUint(b, uint64(OneUSD)+frac, 10) // the one before it keeps its zeros, and makes room for the point
	b[point] = '.'
	return bytes.TrimRight(b, "0")
}

// Float is the amount in dollars for metrics, display and the conditions of rules,
// where the loss of the last digits does not matter. No budget is held to it.
func (u USD) Float() float64 { return float64(u) / float64(OneUSD) }

// ParseUSD reads a non-negative decimal number of dollars with at most 12
// digits after the point. It accepts no sign, exponent or separators.
func ParseUSD(s string) (USD, error) {
	whole, frac, _ := strings.Cut(s, ".")
	if whole == "" || len(frac) > usdDigits || strings.HasSuffix(s, ".") {
		return 0, fmt.Errorf("%q is not an amount in USD: write a decimal such as \"0.50\", with at most 12 digits after the point", s)
	}
	var v uint64
	for _, c := range whole + frac + strings.Repeat("0", usdDigits-len(frac)) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not an amount in USD: write a decimal such as \"0.50\"", s)
		}
		digit := uint64(c - '0')
		hi, lo := bits.Mul64(v, 10)
		if hi != 0 || lo > math.MaxInt64-digit {
			return 0, fmt.Errorf("%q USD is more than loopd can count (about 9 million)", s)
		}
		v = lo + digit
	}
	return USD(v), nil
}

// MarshalText writes the decimal form, so that JSON and YAML carry amounts as
// exact strings.
func (u USD) MarshalText() ([]byte, error) { return u.append(make([]byte, 0, usdLength)), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *USD) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		return errors.New("an amount in USD is empty: write a decimal such as \"0.50\"")
	}
	neg := b[0] == '-'
	if neg {
		b = b[1:]
	}
	v, err := ParseUSD(string(b))
	if err != nil {
		return err
	}
	if neg {
		v = -v
	}
	*u = v
	return nil
}

// times multiplies a per-token price with a number of tokens. It saturates: an
// amount too large to count must compare as "more than any limit", never wrap.
func (u USD) times(n int64) USD {
	if u <= 0 || n <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(u), uint64(n))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return USD(lo)
}

// plus adds two non-negative amounts and saturates like times.
func (u USD) plus(v USD) USD {
	if u > math.MaxInt64-v {
		return math.MaxInt64
	}
	return u + v
}
