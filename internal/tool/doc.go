// Package tool runs the tool calls of a run over HTTP, and checks values against
// JSON Schema: a call's arguments before it is planned, and a final answer
// against the agent's output contract. It makes tools of OpenAPI documents.
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
// # Templates
//
// {name} in a URL's path, a parameter, a header or a string of a body stands for an
// argument, ${secret:NAME} for a secret, and {{ and }} for braces. A template is
// read once: what an argument brings in is never looked at again, so it cannot ask
// for a secret or become another segment of a path, and no argument reaches the
// host, the credentials or the headers that identify the call. Secrets are resolved
// when the request is built and kept nowhere. Where an answer or an error repeats
// one, as it is or as JSON or a URL writes it, a mark takes its place.
//
// # Where tools may live
//
// One dialer makes all connections. It holds the host against the allowed ones
// and each address, when it is connected to, against the networks that are closed,
// so that neither a redirect nor a second answer of a name server gets past.
//
// # What the model sees
//
// At most MaxReadBytes of an answer are read, after decompression. The model sees
// them as UTF-8 without NUL, with a word in front about what had to be replaced or
// made visible; what is no text at all is described instead. Failures are
// {"error": {"kind", "message", ...}}.
//
// # Breakers
//
// Five failures of a tool in a row, within a minute, stop its calls for half a
// minute; then one call finds out. A failure is a timeout, an unknown outcome or a
// definite 5xx. A call that is stopped was not sent, and the model is told so.
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
