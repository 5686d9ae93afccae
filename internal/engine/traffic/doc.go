// Package traffic shares one credential at one model provider among the runs
// that one worker drives, so that hundreds of them do not find out one by one
// that the provider is busy, empty or down. A [Lane] is what all requests with
// the credential go through:
//
//	ticket := lane.Enter(bound)        // queued
//	<-ticket.Ready()                   // or give up: Leave(End{})
//	if e := ticket.Refusal(); e != nil // answer with e, and Leave(End{})
//	...                                // send the request
//	ticket.Leave(End{Sent: true, ...}) // always, exactly once matters
//
// Everything is in memory and per process. Other processes with the same key
// are seen through what the provider reports, not coordinated with.
//
// # The queue
//
// First come, first served, and nobody overtakes: the first of the queue waits
// for its tokens while smaller requests wait behind it. That is fair, because a
// run has at most one ticket: between two requests of one run, every other run
// has had its turn, as in a round robin. Letting small ones pass would finish
// more requests a minute, but starve the long conversations, which have the most
// to lose.
//
// # Limits per minute
//
// Requests and tokens have a token bucket each, which refills continuously and
// holds the amount of one minute. That is how Anthropic limits ("continuously
// replenished up to your maximum limit, rather than being reset at fixed
// intervals", platform.claude.com/docs/en/api/rate-limits), and what OpenAI's
// headers show: 1 of 5000 requests missing is reported to be back in 12 ms, 16
// of 800000 tokens in 1 ms. So a smaller bucket would only waste what a burst
// may use, and over any span of t seconds at most limit * (1 + t/60) leave. Who
// fears that a provider enforces 60 a minute as one a second, as both say they
// may, configures less, or counts on the pace below.
//
// A request reserves the upper bound of its tokens, and its end corrects that to
// the truth. Bounds count bytes and whole output caps, and are up to four times
// the truth, so the lane learns which share of the bound requests lately used
// (the largest, forgotten by 1/16 per answer) and reserves that share. A request
// that used more leaves a debt, which is refilled first. A request above the
// whole limit waits for a full bucket, then goes and leaves a debt: whether it
// is too large is for the provider to say.
//
// A report in the headers (limit, remaining, reset) lowers the limit and the
// level to what the provider counts for all processes. What is missing is back
// at reset ("the time when the rate limit will be fully replenished"), so until
// then the bucket refills no faster than that, which also fits limits per day.
// A report never raises a level: at the end of a long answer it is old. One
// without a reset in the future says nothing but the limit.
//
// # Being refused
//
// A throttled request blocks the lane for the time that the provider asked for,
// at most 60 s (guards practice), or for 1 s, doubling up to 60 s, if it did not
// say. After that one request goes, and each answer lets one more be out, as in
// TCP's slow start: refused requests count against OpenAI's limit too
// ("unsuccessful requests contribute to your per-minute limit"), and Anthropic
// refuses sharp increases and asks to ramp up.
//
// # The circuit
//
// 5 failures within 60 s open the circuit, unless more requests than that were
// answered between them: with hundreds of runs, a few failures a minute are
// normal. It stays open for 30 s, then one request at a time probes. An answer
// closes it, as does any other sign of life; a failure opens it for twice as
// long, at most 5 min. Being out of money opens it at once, for 5 min at a time,
// until a probe is answered. While it is open nothing waits: all are refused.
//
//	class        circuit          retry tokens
//	(answered)   success          gives back 1, and the cost of its retry
//	server       failure          5
//	timeout      failure          10
//	mid_stream   failure          5
//	not_started  failure          5
//	quota        opens at once    never retried
//	throttle     sign of life     5
//	request      sign of life     never retried
//	context      sign of life     never retried
//	auth         sign of life     never retried
//	text_loop    sign of life     never retried: asked once more by the run
//	cancelled    nothing          never retried
//	internal     nothing          never retried
//	lost         nothing          5
//
// Signs of life and nothings count neither way in a closed circuit. Throttling
// (429, 503, 529) is no outage: the block and the pace slow the lane down
// further than a circuit would, without failing anybody. A refused key (401)
// would justify opening at once, but it shares its class with a model that the
// key may not use (403), and one run's bad model must not stop the others; a run
// with a bad key fails at its first call, free, and is not retried.
//
// The circuit is our own, not sony/gobreaker's two-step one: that has one open
// time where outages and empty accounts need two and a growing one, does not say
// when it closes, cannot be opened by a single quota failure without a side
// channel into its callbacks, and knows nothing of the queue, which must be sent
// away when it opens and must yield one probe when it half-opens.
//
// # Retry tokens
//
// The retry quota of the AWS SDKs: 500 tokens, 5 for a retry, 10 after a
// timeout; an answer brings 1, and gives back the cost if it was to a retry. So
// blips are retried, and in an outage retries add a fifth to the load instead of
// multiplying it.
package traffic
