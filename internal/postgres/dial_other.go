//go:build !linux

package postgres

// setPeerTimeout does nothing: other systems have no such option, or another one. Probes
// and the deadlines of statements remain.
func setPeerTimeout(uintptr) error { return nil }
