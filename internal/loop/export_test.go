package loop

// Rungs are the values that a Suggester tries, by the field of Limits.
func (s *Suggester) Rungs() map[string][]int64 {
	all := map[string][]int64{}
	for _, l := range s.ladders {
		for _, r := range l.rungs {
			all[l.name] = append(all[l.name], r.value)
		}
	}
	return all
}

// SetLimit sets a limit by its field.
func SetLimit(l *Limits, field string, v int64) {
	for _, f := range limitFields() {
		if f.name == field {
			f.set(l, v)
		}
	}
}

// GetLimit reads a limit by its field.
func GetLimit(l Limits, field string) int64 {
	for _, f := range limitFields() {
		if f.name == field {
			return f.get(l)
		}
	}
	return -1
}

// LimitFields are the fields for which there are suggestions.
func LimitFields() []string {
	var names []string
	for _, f := range limitFields() {
		names = append(names, f.name)
	}
	return names
}

// AsSuccess is the profile of a success that used as much.
func (p Profile) AsSuccess() (Profile, error) {
	p.Run.ID += " that succeeded"
	p.own.State = StateSucceeded
	return p, nil
}
