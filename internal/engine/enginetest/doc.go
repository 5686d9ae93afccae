// Package enginetest is the test kit of package engine: an in-memory Fake of its
// Journal and Leases with the semantics of the real ones, Workers that can be
// killed at any commit or effect, a scripted Model, Tools that keep a ledger of
// what was sent, and Conformance, which holds the Fake and Postgres to the same
// promises. It starts no goroutine and takes its time from time.Now, so that it
// works in a testing/synctest bubble.
package enginetest
