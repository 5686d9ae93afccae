// Package postgres keeps loopd's runs, journals, leases and agents in Postgres.
//
// The promises, and what keeps each:
//
//   - A journal has no gaps, no duplicates and one writer. Every append is one
//     statement, its own or one for many runs, that starts with the fenced update of
//     the run's row: epoch, owner and next sequence number must be the caller's.
//   - An append happened or it did not. When the connection breaks at commit the
//     store reads again, under the row's lock, before it answers.
//   - A child run, and what one run tells another, are written by the statement of the
//     append that makes them true. So is a decision or a result from outside with the
//     check that it still counts, on database time.
//   - An intent is not written over an unseen signal, so after a cancel is
//     acknowledged nothing starts.
//   - An owner of runs has a row in workers. The row is renewed on database time;
//     deleting it gives all of its runs back, by foreign key.
//   - LISTEN and NOTIFY only wake; everything is found by polling as well. Deltas of
//     answers are the exception: nobody stores them, so they may be lost.
//
// Appends that arrive together share a commit, see group.go, and the usual ones a
// statement, see append_group.go.
//
// Behind PgBouncer in transaction mode, list statement_timeout, lock_timeout and
// idle_in_transaction_session_timeout in its ignore_startup_parameters, set them
// for the database role instead, and give a direct address for what listens and for
// Migrate.
//
// Queries are in queries/*.sql; `sqlc generate` turns them into package db.
package postgres
