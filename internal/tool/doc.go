// Package tool runs the tool calls of a run over HTTP, and checks values against
// JSON Schema: a call's arguments before it is planned, and a final answer
// against the agent's output contract.
//
// # At most one send
//
// Go's HTTP client silently sends a POST again when it carries an
// Idempotency-Key, its body can be rewound and the reused connection dies before
// the first byte of the answer (golang/go#19943): the key that loopd must send is
// what switches that retry on. So there are two clients. Calls that may be sent
// again use an ordinary one. All others use one that opens a fresh connection
// for each request, speaks HTTP/1.1 only, follows no redirect and is given a
// body that cannot be rewound; none of the ways in which net/http repeats a
// request is open to it.
//
// # What an outcome means
//
// A call was not sent when the request got no connection: name resolution, dial
// and TLS come before its first byte. A complete 2xx or 4xx answer is definite,
// except 408, 409 and 425, which do not say whether the call ran. Everything else
// that happens after the request got a connection leaves it open whether the
// tool acted. For tools that are not repeatable that is loop.OutcomeUnknown: the
// call is in doubt. See classify.go for the whole table.
package tool
