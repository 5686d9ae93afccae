package engine

// Names of the OpenTelemetry conventions for generative AI, version 0.1.0, which are not
// in the Go semconv packages. This is the only place that has them; loopd's own begin
// with "loopd.". Source: github.com/open-telemetry/semantic-conventions-genai,
// model/gen-ai/spans.yaml.
//
//nolint:gosec // tokens are what models are paid by, not credentials
const (
	attrOperation     = "gen_ai.operation.name"
	attrProvider      = "gen_ai.provider.name"
	attrModel         = "gen_ai.request.model"
	attrMaxTokens     = "gen_ai.request.max_tokens"
	attrAnsweredBy    = "gen_ai.response.model"
	attrResponse      = "gen_ai.response.id"
	attrFinish        = "gen_ai.response.finish_reasons"
	attrFirstChunk    = "gen_ai.response.time_to_first_chunk" // seconds
	attrAgent         = "gen_ai.agent.name"
	attrAgentVersion  = "gen_ai.agent.version"
	attrConversation  = "gen_ai.conversation.id"
	attrInputTokens   = "gen_ai.usage.input_tokens" // cache reads and writes are in it
	attrOutputTokens  = "gen_ai.usage.output_tokens"
	attrCacheRead     = "gen_ai.usage.cache_read.input_tokens"
	attrCacheCreation = "gen_ai.usage.cache_creation.input_tokens"
	attrReasoning     = "gen_ai.usage.reasoning.output_tokens"
	attrTool          = "gen_ai.tool.name"
	attrToolCall      = "gen_ai.tool.call.id"
	attrToolType      = "gen_ai.tool.type"
	attrError         = "error.type"

	// Opt-in: they hold what was said. See Content.
	attrInstructions  = "gen_ai.system_instructions"
	attrInput         = "gen_ai.input.messages"
	attrOutput        = "gen_ai.output.messages"
	attrToolArguments = "gen_ai.tool.call.arguments"
	attrToolResult    = "gen_ai.tool.call.result"
	eventDetails      = "gen_ai.client.inference.operation.details"

	opInvokeAgent = "invoke_agent"
	opChat        = "chat"
	opExecuteTool = "execute_tool"

	attrRun        = "loopd.run.id"
	attrTenant     = "loopd.tenant"
	attrAttempt    = "loopd.attempt"
	attrIteration  = "loopd.iteration"
	attrPurpose    = "loopd.purpose"
	attrCost       = "loopd.cost.usd"
	attrContext    = "loopd.context.used_ratio"
	attrState      = "loopd.run.state"
	attrStopReason = "loopd.stop.reason"
	attrOutcome    = "loopd.tool.outcome"
	attrEffect     = "loopd.tool.effect"
	attrDecision   = "loopd.approval.decision"

	spanIteration    = "loopd.iteration"
	spanApprovalWait = "loopd.approval_wait"
	eventVerdict     = "loopd.guard.verdict"
)
