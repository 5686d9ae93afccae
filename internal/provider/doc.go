// Package provider holds what the adapters of model providers share: one POST
// with its body under watch, a reader for server-sent events, the table from
// error answers to loop.ErrorClass, and the rules that decide whether an answer
// is whole and which call ids go on the wire. CLASSES.md shows that table, and what
// the engine does about each class; it is written from classes.go. Package
// providertest holds what every adapter must pass.
//
// The adapters speak HTTP themselves instead of through the vendors' SDKs. What
// loopd needs is below the SDKs: the exact text of arguments and signed blocks,
// compatible servers that send empty ids, missing indexes or arguments as an
// object, one request per call with no retry anywhere, and a stream that merely
// ends told apart from one that finished. The wire formats used are small; the
// SDKs are half of a cold build.
package provider
