// Package mcp calls the tools of MCP servers, over streamable HTTP or, on a
// developer's machine, over the standard input and output of a command.
//
// # At most one send
//
// The official SDK does the protocol; what leaves loopd and what came back is
// watched below it, by the wire in wire.go and the pipe in command.go. A call is
// a POST of tools/call. For tools that are not repeatable that POST travels
// through a transport that cannot send twice: a fresh connection, HTTP/1.1, a
// body that cannot be rewound, no redirects; and the wire refuses a second one.
// A session that the server forgot is opened again, but such a call is not: the
// model is told that it did not run.
//
// Resuming is not sending again. When the stream that carries an answer breaks,
// it is asked for once more by GET with Last-Event-ID; that request names an
// event, not a call, so no server can run the tool because of it. It is allowed
// for every effect, within the call's time, and is what turns a cut connection
// into an answer instead of a doubt.
//
// # What an outcome means
//
// As in package tool: no connection, not sent. A complete answer is definite: a
// result, a result that says it is an error, a JSON-RPC error that says the
// request was not taken, a 4xx status except 408, 409 and 425. All else that
// happens after the request got a connection leaves it open whether the tool
// acted; for tools that are not repeatable that is loop.OutcomeUnknown. An
// answer that came is believed even if the call's time ran out beside it.
//
// # Trust
//
// A server's word about its tools is a claim. Annotations may make an effect
// stricter, never looser. A definition is known by the SHA-256 of its name,
// description, schemas and annotations; a call that carries the hash of another
// definition than the server now shows is not made, until a person accepts the
// new hash. The definition is looked up anew when the server says that its list
// changed, and otherwise after a minute; after seconds when the call is not
// repeatable. loopd offers servers nothing: no roots, no sampling, no
// elicitation; a tool that asks for input is refused.
//
// # Sessions
//
// Calls of one tenant to one server with the same headers share a session; what
// a server remembers for a session therefore never crosses tenants. A session
// that no call uses is closed after a while. One call's bad answer ends that
// call, not the session that others use.
package mcp
