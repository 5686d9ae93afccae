package pricing

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// match says which names of a model mean a row.
type match struct {
	Equals     string  `json:"equals"`
	StartsWith string  `json:"starts_with"`
	EndsWith   string  `json:"ends_with"`
	Contains   string  `json:"contains"`
	Regex      string  `json:"regex"`
	Or         []match `json:"or"`
	And        []match `json:"and"`

	re *regexp.Regexp // of Regex
}

// compile checks a rule, so that none is silently never met.
func (m *match) compile() error {
	set := 0
	for _, text := range []string{m.Equals, m.StartsWith, m.EndsWith, m.Contains, m.Regex} {
		if text != "" {
			set++
		}
	}
	for _, list := range [][]match{m.Or, m.And} {
		if len(list) > 0 {
			set++
		}
		for i := range list {
			if err := list[i].compile(); err != nil {
				return err
			}
		}
	}
	if set > 1 {
		return errors.New("match: more than one member is set; join rules with \"or\" and \"and\"")
	}
	if m.Regex == "" {
		return nil
	}
	var err error
	if m.re, err = regexp.Compile(m.Regex); err != nil {
		return fmt.Errorf("match.regex: %w", err)
	}
	return nil
}

// matches reports whether the rule accepts a model's name. An empty rule accepts
// none.
func (m match) matches(name string) bool {
	hit := func(sub match) bool { return sub.matches(name) }
	switch {
	case m.Equals != "":
		return name == m.Equals
	case m.StartsWith != "":
		return strings.HasPrefix(name, m.StartsWith)
	case m.EndsWith != "":
		return strings.HasSuffix(name, m.EndsWith)
	case m.Contains != "":
		return strings.Contains(name, m.Contains)
	case m.re != nil:
		return m.re.MatchString(name)
	case len(m.Or) > 0:
		return slices.ContainsFunc(m.Or, hit)
	case len(m.And) > 0:
		return !slices.ContainsFunc(m.And, func(sub match) bool { return !hit(sub) })
	}
	return false
}
