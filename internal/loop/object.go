package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// readObject reads a text that is one JSON object and nothing else into members,
// which are pointers by name. Names are exact and no name may be given twice: who
// wrote the text must not be able to say two things at once. Other members are
// passed over, and absent ones left alone.
func readObject(text string, members map[string]any) error {
	d := json.NewDecoder(strings.NewReader(text))
	open, err := d.Token()
	if err != nil || open != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		var raw json.RawMessage
		token, err := d.Token()
		if err == nil {
			err = d.Decode(&raw)
		}
		name, _ := token.(string)
		switch {
		case err != nil:
			return errors.New("it is no JSON object")
		case seen[name]:
			return fmt.Errorf("it has %q twice", excerpt(name, evidenceExcerpt))
		}
		seen[name] = true
		to, wanted := members[name]
		if !wanted {
			continue
		}
		if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, to) != nil {
			return fmt.Errorf("its %q is not of the right type", name)
		}
	}
	if _, err := d.Token(); err != nil {
		return errors.New("it is no JSON object")
	}
	if strings.TrimSpace(text[d.InputOffset():]) != "" {
		return errors.New("more text follows the JSON object")
	}
	return nil
}
