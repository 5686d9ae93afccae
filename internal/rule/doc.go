// Package rule judges tool calls and answers by the conditions that people wrote,
// in the Common Expression Language (CEL): which calls a person must approve, which
// calls a policy may approve instead of a person, and what must hold of a run and of
// its final answer.
//
//	args.amount > 100
//	args.currency != "EUR" || args.items.exists(i, i.price * i.count > 500)
//	run.cost_usd > 0.50 && !(has(args.dry_run) && args.dry_run == true)
//
// # What a condition sees
//
//	args             map      the call's arguments, as the model wrote them
//	tool.name        string   "refund"
//	tool.effect      string   "READ_ONLY", "IDEMPOTENT", "SIDE_EFFECT" or "IRREVERSIBLE"
//	run.id           string
//	run.agent        string   "agents/support"
//	run.labels       map      of strings
//	run.iterations   int      so far
//	run.tool_calls   int      so far
//	run.cost_usd     double   so far; to compare with, budgets are held elsewhere
//
// An assertion sees, besides the variables of the run,
//
//	answer           string   the final answer; "" at a checkpoint
//	answer_json      any      the answer as JSON; null if it is none
//	calls            list     of every call so far: tool, args, result, result_json (the
//	                          result as JSON; null if it is none), outcome, effect, state,
//	                          iteration
//	ledger           list     of what was done in the world: tool, args, effect, state,
//	                          outcome, run (the id of the child run that did it, or "")
//
// args is missing where it cannot be read as a JSON object, or is in another run's
// journal; result_json where the result is too large. To ask for them is a fault.
//
// Conditions and assertions see nothing else: no clock, no randomness, no files, no network, and no
// time zones, which come from files. Keys of maps are visited in sorted order.
// So the same call of the same run is judged the same everywhere and for ever.
//
// Besides the standard functions there are lowerAscii, upperAscii, trim, split,
// substring and charAt of strings, and math.abs, math.round, math.greatest and
// the rest of CEL's math extension. Functions whose result or time can grow with
// the product of two arguments (replace, join, format, indexOf, sets.*) are left
// out: both may be the model's text. For the same reason the pattern of matches
// must be a literal. What sets.contains would say is
// args.codes.all(c, c in ["A", "B"]).
//
// # Numbers
//
// A JSON number without point or exponent is an int, or a uint above the largest
// int: never rounded. With point or exponent it is the nearest double. All three
// compare by value, with each other and with literals: args.amount > 100 is true
// of 100.5 and of 2e2. But CEL does not add or multiply different types: write
// double(args.amount) * 1.19. An integer beyond 64 bits, or a number beyond all
// doubles, is a value of its own: it equals no other, and to order it or to
// compute with it is a fault. So is ordering the text "100" against a number,
// whereas == just says that the two differ.
//
// # Faults
//
// Everything that keeps a condition from being judged is a fault: an argument
// that is missing (test it with has), null or of another type, arguments with a
// key given twice, a condition that costs too much, a panic. A fault is never an
// answer: the call needs approval, or the policy does not hold, and either way a
// person decides; and an assertion does not hold. CEL's && and || take the side that is known: a fault beside
// "false &&" or "true ||" does not matter.
package rule
