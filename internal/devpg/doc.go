// Package devpg starts a private Postgres from the programs that are already
// installed, so that one binary is enough to try loopd and to test it. Nothing
// is downloaded and nothing listens on the network: the server is reached over
// a Unix socket that only its own user (and root) may open.
//
// A data directory holds:
//
//	data/         the cluster, owned by the user that runs Postgres
//	data.init/    a cluster in the making; a killed initdb leaves only this
//	lock          held by the one loopd that uses the directory
//	postgres.log  the server's log since its last start
//	url           the connection string, while the server runs: psql "$(cat url)"
//
// The server never outlives loopd. Postgres refuses to run as root, so root
// drops to the user postgres, or else nobody. On Linux the kernel tells the
// server when loopd dies; elsewhere, and after the unforeseen, the next Start
// ends what is left over before it starts anew. Data is never overwritten: a
// cluster of another major version is refused.
package devpg
