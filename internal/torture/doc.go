// Loopd-torture is the fault machine: it runs several loopd processes on one
// Postgres, breaks whatever can break, lets everything heal, and then checks that
// nothing was lost, done twice or left behind. See README.md for what it checks.
//
// It shares no code with loopd but the API and, as text in SQL, the schema, so that
// a misunderstanding in loopd is not repeated in its judge. (internal/devpg, which
// starts the Postgres, is tooling.)
//
//	go build -o bin/loopd ./cmd/loopd && go run ./internal/torture --loopd bin/loopd --duration 5m
package main
