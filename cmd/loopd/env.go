package main

import "io"

// Env is what the process hands to its commands, so that nothing below main reads
// the environment or writes to the terminal by itself.
type Env struct {
	Getenv func(string) string // as os.Getenv
	Stdout io.Writer           // data
	Stderr io.Writer           // progress, questions and errors
	Stdin  io.Reader           // answers, and files named "-"
}
