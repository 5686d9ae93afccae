// Package migrations holds loopd's Postgres schema as numbered goose files. They
// only go forward: a change expands the schema first, and contracts it in a later
// release, so that the programs of both releases work while they overlap.
package migrations

import "embed"

// FS holds the files, for goose.
//
//go:embed *.sql
var FS embed.FS
