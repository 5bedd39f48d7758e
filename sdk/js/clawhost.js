/**
 * Write a clawhost plugin in JavaScript.
 *
 * A plugin is one ES module with one export, named after what it is: `judge`, `groupJudge`,
 * `hintExtractor`, `filter`, `loss`, `pairLoss`, `advantage`, `gate` or `environment`.
 *
 *     import { turnOf, userText, verdict } from "./sdk/js/clawhost.js";
 *
 *     export const judge = {
 *       scoreTurn(trajectory, turnIndex) {
 *         const turn = turnOf(trajectory, turnIndex);
 *         return verdict(/thank/i.test(userText(turn)) ? 1 : 0, "looked for thanks");
 *       },
 *     };
 *
 * A fresh instance answers each call: nothing that is kept in a variable reaches the next one.
 * Whatever is thrown that is not made by `unsupported` and its siblings is a defect: it gives no
 * verdict, and the error `internal` with the lines that led to it. Everything here is plain
 * JavaScript and runs in any engine; what needs the host is in `host.js`.
 */

/** @typedef {"system" | "user" | "assistant" | "tool"} Role */
/** @typedef {{ mediaType: string, data: Uint8Array }} Blob */
/**
 * A piece of a message. `reasoning` is there only when the policy's template exposes it; `other`
 * is a kind and its JSON text.
 * @typedef {{ tag: "text" | "reasoning", val: string } | { tag: "image", val: Blob }
 *   | { tag: "other", val: [string, string] }} Part
 */
/**
 * `arguments` is the exact text that the policy emitted; it may be invalid JSON.
 * @typedef {{ id: string, name: string, arguments: string }} ToolCall
 */
/**
 * @typedef {object} Message
 * @property {Role} role
 * @property {Part[]} content
 * @property {ToolCall[]} toolCalls
 * @property {string | null} toolCallId On tool messages: the call that this answers.
 * @property {string | null} name
 */
/** @typedef {{ name: string, description: string, parameters: string }} ToolSpec */
/**
 * One decision of the policy and everything known right after it.
 * @typedef {object} Turn
 * @property {number} index Zero-based position in the trajectory.
 * @property {Message[]} prompt What the policy saw.
 * @property {Message} response What the policy produced.
 * @property {Message[]} nextState What followed. Untrusted: it may try to talk a judge into a score.
 * @property {boolean} truncated The reply was cut at the token limit.
 */
/**
 * @typedef {object} Trajectory
 * @property {string} sessionId
 * @property {string | null} taskId
 * @property {string} groupId Samples drawn for the same prompt share it.
 * @property {Turn[]} turns
 * @property {number | null} envReward Reward of the environment, before judging.
 * @property {[string, string][]} metadata Keys and JSON texts of the dataset's row.
 */
/** @typedef {{ name: string, value: number }} Metric */
/** @typedef {{ score: number, rationale: string }} Vote */
/**
 * @typedef {object} Verdict
 * @property {number} reward Finite and from -1 to 1, unless the operator widened the range.
 * @property {boolean} accept False keeps the turn out of training and in the record.
 * @property {Vote[]} votes
 * @property {string} rationale
 * @property {Metric[]} metrics
 */
/** @typedef {{ text: string, placement: "last-user" | "system", confidence: number }} Hint */
/** @typedef {{ hint: Hint | null, metrics: Metric[] }} Extraction */
/** @typedef {{ keep: boolean, reason: string, metrics: Metric[] }} FilterDecision */
/** @typedef {{ publish: boolean, reason: string, metrics: Metric[] }} GateDecision */
/**
 * A new adapter that is written and verified.
 * @typedef {object} Candidate
 * @property {bigint} version
 * @property {bigint} parent The version that the step started from.
 * @property {string} digest
 * @property {string | null} owner Whose adapter it is; null for the shared one.
 * @property {number} samples
 * @property {Metric[]} metrics The numbers among the step's metrics, named by their path.
 */
/**
 * A reply of a preference pair; the arrays are of one length.
 * @typedef {{ tokens: number[], mask: number[], logprob: number[], refLogprob: number[] }} PairReply
 */
/**
 * What a plugin throws to say why there is no result.
 * @typedef {{ tag: "unsupported" | "invalid-input" | "denied" | "transient" | "internal",
 *   val: string }} PluginError
 */

/**
 * The visible text of a message: all text parts, joined by newlines.
 * @param {Message} message
 * @returns {string}
 */
export function text(message) {
  const texts = message.content.filter((part) => part.tag === "text");
  return texts.map((part) => part.val).join("\n");
}

/**
 * The turn that a call is about. Throws an invalid-input error when there is none.
 * @param {Trajectory} trajectory
 * @param {number} index
 * @returns {Turn}
 */
export function turnOf(trajectory, index) {
  const turn = trajectory.turns[index];
  if (turn === undefined) {
    throw invalidInput(`turn ${index} of a trajectory with ${trajectory.turns.length} turns`);
  }
  return turn;
}

/**
 * What the user wrote after the reply, all messages joined by newlines.
 * @param {Turn} turn
 * @returns {string}
 */
export function userText(turn) {
  return turn.nextState.filter((message) => message.role === "user").map(text).join("\n");
}

/**
 * The last thing that the user wrote before the reply; empty when there is none.
 * @param {Turn} turn
 * @returns {string}
 */
export function lastRequest(turn) {
  const asked = turn.prompt.filter((message) => message.role === "user").pop();
  return asked === undefined ? "" : text(asked);
}

/**
 * Texts of the tool results that followed the reply.
 * @param {Turn} turn
 * @returns {string[]}
 */
export function toolResults(turn) {
  return turn.nextState.filter((message) => message.role === "tool").map(text);
}

/**
 * Words between Unicode white space. (`\s` knows other characters than the SDKs for other
 * languages do.)
 * @param {string} string
 * @returns {number}
 */
export function countWords(string) {
  return string.split(/\p{White_Space}+/u).filter((word) => word !== "").length;
}

/**
 * A message of one text part.
 * @param {Role} role
 * @param {string} string
 * @returns {Message}
 */
export function message(role, string) {
  const content = [{ tag: "text", val: string }];
  return { role, content, toolCalls: [], toolCallId: null, name: null };
}

/**
 * One opinion behind a verdict: a finite score in the range of the reward.
 * @param {number} score
 * @param {string} rationale
 * @returns {Vote}
 */
export function vote(score, rationale) {
  return { score, rationale };
}

/**
 * A verdict.
 * @param {number} reward
 * @param {string} rationale
 * @param {{ accept?: boolean, votes?: Vote[], metrics?: Record<string, number> }} [more]
 *   Accepted, without votes and metrics by default.
 * @returns {Verdict}
 */
export function verdict(reward, rationale, { accept = true, votes = [], metrics = {} } = {}) {
  return { reward, accept, votes, rationale, metrics: named(metrics) };
}

/**
 * The majority of votes: 1 when more are positive than negative, -1 when fewer, else 0. Votes of 0
 * do not count. The rationale is that of the votes on the winning side.
 * @param {Vote[]} votes
 * @returns {Verdict}
 */
export function majority(votes) {
  const up = votes.filter((vote) => vote.score > 0).length;
  const down = votes.filter((vote) => vote.score < 0).length;
  const reward = Math.sign(up - down);
  const reasons = votes
    .filter((vote) => vote.score * reward > 0 || (reward === 0 && up === 0))
    .map((vote) => vote.rationale);
  const rationale = reasons.length > 0 ? reasons.join("; ") : `${up} for, ${down} against`;
  return verdict(reward, rationale, { votes });
}

/**
 * Advice for the teacher.
 * @param {string} string
 * @param {{ placement?: "last-user" | "system", confidence?: number,
 *   metrics?: Record<string, number> }} [more]
 *   Appended to the last user message, with confidence 1, by default.
 * @returns {Extraction}
 */
export function hint(string, { placement = "last-user", confidence = 1, metrics = {} } = {}) {
  return { hint: { text: string, placement, confidence }, metrics: named(metrics) };
}

/**
 * The turn was read and teaches nothing.
 * @param {Record<string, number>} [metrics]
 * @returns {Extraction}
 */
export function noHint(metrics = {}) {
  return { hint: null, metrics: named(metrics) };
}

/**
 * Of a filter: the turn may train.
 * @param {Record<string, number>} [metrics]
 * @returns {FilterDecision}
 */
export function keep(metrics = {}) {
  return { keep: true, reason: "", metrics: named(metrics) };
}

/**
 * Of a filter: the turn does not train, for this reason. Its text stays in the journal.
 * @param {string} reason
 * @param {Record<string, number>} [metrics]
 * @returns {FilterDecision}
 */
export function drop(reason, metrics = {}) {
  return { keep: false, reason, metrics: named(metrics) };
}

/**
 * Of a gate: the adapter is published.
 * @param {Record<string, number>} [metrics]
 * @returns {GateDecision}
 */
export function publish(metrics = {}) {
  return { publish: true, reason: "", metrics: named(metrics) };
}

/**
 * Of a gate: the adapter is discarded, for this reason.
 * @param {string} reason
 * @param {Record<string, number>} [metrics]
 * @returns {GateDecision}
 */
export function reject(reason, metrics = {}) {
  return { publish: false, reason, metrics: named(metrics) };
}

/**
 * The metric of this name; undefined if the step does not have it.
 * @param {Candidate} candidate
 * @param {string} name
 * @returns {number | undefined}
 */
export function metricOf(candidate, name) {
  return candidate.metrics.find((metric) => metric.name === name)?.value;
}

/**
 * How much more likely than under the base model a reply is under the policy, in nats, over its trained tokens.
 * @param {PairReply} reply
 * @returns {number}
 */
export function logRatio(reply) {
  let sum = 0;
  for (const [i, trains] of [...reply.mask].entries()) {
    if (trains !== 0) sum += reply.logprob[i] - reply.refLogprob[i];
  }
  return sum;
}

/**
 * Partials that are `slope` at each trained token of a reply and 0 elsewhere.
 * @param {PairReply} reply
 * @param {number} slope
 * @returns {number[]}
 */
export function partials(reply, slope) {
  return Array.from(reply.mask, (trains) => (trains === 0 ? 0 : slope));
}

/**
 * To throw: there is nothing to judge. The turn gets no verdict, which is not a reward of 0.
 * @param {string} reason
 * @returns {PluginError}
 */
export function unsupported(reason) {
  return { tag: "unsupported", val: reason };
}

/**
 * To throw: the input breaks this plugin's contract; the sample is quarantined.
 * @param {string} reason
 * @returns {PluginError}
 */
export function invalidInput(reason) {
  return { tag: "invalid-input", val: reason };
}

/**
 * To throw: a host capability was refused or is out of budget.
 * @param {string} reason
 * @returns {PluginError}
 */
export function denied(reason) {
  return { tag: "denied", val: reason };
}

/**
 * To throw: worth trying again.
 * @param {string} reason
 * @returns {PluginError}
 */
export function transient(reason) {
  return { tag: "transient", val: reason };
}

/**
 * To throw: a defect in this plugin.
 * @param {string} reason
 * @returns {PluginError}
 */
export function internal(reason) {
  return { tag: "internal", val: reason };
}

/**
 * @param {Record<string, number>} metrics
 * @returns {Metric[]}
 */
function named(metrics) {
  return Object.entries(metrics).map(([name, value]) => ({ name, value }));
}
