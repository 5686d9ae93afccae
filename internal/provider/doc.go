// Package provider holds what the adapters of model providers share: one POST
// with its body under watch, a reader for server-sent events, the table from
// error answers to loop.ErrorClass, and the rules that decide whether an answer
// is whole and which call ids go on the wire. CLASSES.md shows that table, and what
// the engine does about each class; it is written from classes.go. Package
// providertest holds what every adapter must pass.
//
// An agent's output schema goes to the provider too, where the price book knows that
// the model can be kept to it (loop.Price.Structured). Subset says which schemas a
// provider takes; they are sent as they are, or not at all:
//
//	wire                  member                                      other schemas    beside tools
//	anthropic             output_config.format                        not sent         yes
//	OpenAI Responses      text.format, strict                         not strict       yes
//	OpenAI Chat           response_format, as Profile.Structured says not strict       Profile.StructuredWithTools
//	gemini                responseJsonSchema                          not sent         from Gemini 3 on
//
// It is left out of the wrap-up, and of all further calls of a run in which a request
// with it was refused (400): see package loop. The answer is checked in any case.
//
// The adapters speak HTTP themselves instead of through the vendors' SDKs. What
// loopd needs is below the SDKs: the exact text of arguments and signed blocks,
// compatible servers that send empty ids, missing indexes or arguments as an
// object, one request per call with no retry anywhere, and a stream that merely
// ends told apart from one that finished. The wire formats used are small; the
// SDKs are half of a cold build.
package provider
