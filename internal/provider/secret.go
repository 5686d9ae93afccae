package provider

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

const redacted = "[redacted]"

// Secret is a credential that cannot be printed, logged or marshalled by
// accident. Convert it to a string to use it.
type Secret string

// String hides the value.
func (Secret) String() string { return redacted }

// GoString hides the value from %#v.
func (Secret) GoString() string { return redacted }

// MarshalText hides the value from JSON, YAML and structured logs.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// minSecret is the length, in bytes, from which a key is one. Shorter ones are the
// dummies that local servers ask for, and removing them would garble words.
const minSecret = 8

// hide removes the credential from text that a server wrote.
func (s Secret) hide(text string) string {
	if len(s) < minSecret {
		return text
	}
	return strings.ReplaceAll(text, string(s), redacted)
}

// hideIn removes the credential from what people read of an error.
func (s Secret) hideIn(e *loop.ModelError) *loop.ModelError {
	e.Message, e.Code = s.hide(e.Message), s.hide(e.Code)
	return e
}

// CheckBaseURL reports an address that no request can be sent to. The empty
// address is fine: it stands for the provider's own.
func CheckBaseURL(base string) error {
	if base == "" {
		return nil
	}
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return fmt.Errorf("base URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("base URL %q: write it with http:// or https://", u.Redacted())
	case u.Host == "":
		return fmt.Errorf("base URL %q: the host is missing", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("base URL %q: credentials belong into the API key, not into the address", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("base URL %q: leave out the query and the fragment", u.Redacted())
	}
	return nil
}
