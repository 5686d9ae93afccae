// Package engine drives runs: it asks the pure core in package loop what to do
// next, makes the intent durable, performs it, and records what came back. One
// supervised goroutine owns each run. The engine states the ports it needs
// (Journal, Leases, Model, Tools, Checker); adapters happen to fit them.
package engine
