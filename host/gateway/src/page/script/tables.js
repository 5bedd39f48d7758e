// Tiles, and the tables of turns, steps and plugins.

const STEPS_SHOWN = 20;

const none = (text) => element("p", { class: "none" }, text);

/** The rows of one owner; those of the whole server are counted without owners. */
function ownerTiles({ queued, steps, adapters }, release) {
  return [
    ["queued samples", queued, ""],
    ["steps", sum(steps), formatCounts(steps)],
    ["adapters", adapters, ""],
    ["active version", release.version, release.pinned ? "pinned" : ""],
  ];
}

function tiles({ counts, engine, judging, training, owner, release }) {
  const noVerdict = sum(counts.no_verdict);
  const batch = training?.batch ? `batch ${training.batch}, ` : "";
  const trainingState = training?.enabled === false ? "off"
    : training?.running ? "step running" : training?.waits ?? "idle";
  const rows = owner ? ownerTiles(owner, release) : [
    ["running requests", engine.running, `waiting ${engine.waiting}`],
    ["turns", sum(counts.turns), formatCounts(counts.turns)],
    ["sessions", counts.sessions, ""],
    ["verdicts", counts.verdicts, [
      judging?.ready !== undefined ? `to judge ${judging.ready}` : "",
      noVerdict ? `no verdict ${noVerdict}` : "",
    ].filter(Boolean).join(", ")],
    ["feedback", counts.feedback, ""],
    ["queued samples", counts.samples.queued ?? 0, batch + trainingState],
    ["steps", sum(counts.steps), formatCounts(counts.steps)],
    ["adapters", counts.adapters, ""],
  ];
  return fragment(rows.map(([label, value, detail]) =>
    element("div", {}, element("b", {}, String(value)), element("span", {}, label), element("small", {}, detail))));
}

function rewardClass(reward) {
  if (reward > 0) return "good";
  return reward < 0 ? "bad" : "none";
}

function verdicts(turn) {
  if (turn.verdicts.length === 0) return element("span", { class: "none" }, turn.judging);
  return turn.verdicts.map(({ source, reward, reason }) => element("div", {},
    reward === null
      ? element("span", { class: "none" }, `none: ${reason ?? ""}`)
      : element("span", { class: rewardClass(reward) }, formatSigned(reward)),
    ` ${source}`));
}

/** Shows the explanation of a turn or a step. */
async function explain(title, path) {
  try {
    await ask({ title, details: JSON.stringify(await getJson(path), null, 2) });
  } catch (error) {
    await ask({ title, text: error.message });
  }
}

const explainButton = (id, what, path) =>
  element("button", { class: "link", type: "button", onclick: () => explain(`${what} ${id}`, path) }, String(id));

const small = (text) => (text ? element("small", {}, text) : null);

/** Text of which a few lines are visible. */
const clamped = (text) => element("div", { class: "clamp" }, text);

function turnTable(turns) {
  if (turns.length === 0) return none("No replies yet.");
  return table("turns", [
    ["turn", (turn) => explainButton(turn.id, "Turn", `/v1/turns/${turn.id}/explain`)],
    ["when", (turn) => since(turn.received_ms)],
    ["session", (turn) => [element("span", { title: turn.session }, turn.session), small(turn.key)], "id"],
    ["prompt", (turn) => clamped(turn.prompt), "text"],
    ["reply", (turn) => clamped(turn.reply), "text"],
    ["state", (turn) => [turn.state, small(turn.reason)]],
    ["verdicts", verdicts, "wrap"],
    ["adapter", (turn) => String(turn.adapter_version)],
  ], turns);
}

function stepTable(steps) {
  if (steps.length === 0) return none("No training steps yet.");
  return table("steps", [
    ["step", (step) => explainButton(step.id, "Step", `/v1/steps/${step.id}`)],
    ["when", (step) => since(step.ended_ms)],
    ["duration", (step) => `${((step.ended_ms - step.started_ms) / 1000).toFixed(1)} s`],
    ["outcome", (step) => [step.outcome, small(step.reason)], "wrap"],
    ["trained", (step) => String(step.trained)],
    ["dropped", (step) => String(step.dropped)],
    ["adapter", (step) => [String(step.adapter ?? "–"), small(step.owner)]],
    ["reward", (step) => formatNumber(step.reward_mean)],
    ["KL", (step) => formatNumber(step.kl_reference)],
    ["loss", (step) => formatNumber(step.loss_last)],
    ["gradient norm", (step) => formatNumber(step.gradient_norm)],
  ], steps.slice(-STEPS_SHOWN).reverse());
}

function pluginState({ revoked, refused }) {
  if (revoked) return [element("span", { class: "bad" }, "revoked"), small(revoked.reason)];
  if (refused) return [element("span", { class: "bad" }, "new build rejected"), small(refused.reason)];
  return element("span", { class: "good" }, "active");
}

/** The plugins with what their calls cost, and plugins that are no longer loaded but have been called. */
function pluginTable({ plugins, costs }) {
  const rows = (plugins ?? []).map((plugin) => (typeof plugin === "string" ? { name: plugin } : plugin));
  const loaded = new Set(rows.map((plugin) => plugin.name));
  rows.push(...costs.filter((cost) => !loaded.has(cost.name)).map(({ name }) => ({ name, kind: "not loaded" })));
  if (rows.length === 0) return none("No plugins.");
  const costOf = new Map(costs.map((cost) => [cost.name, cost]));
  const cost = (format) => (plugin) => (costOf.has(plugin.name) ? format(costOf.get(plugin.name)) : "–");
  return table("plugins", [
    ["plugin", (plugin) => plugin.name],
    ["kind", (plugin) => plugin.kind ?? "–"],
    ["digest", (plugin) => plugin.digest?.slice(0, 12) ?? "–", "id"],
    ["state", pluginState, "wrap"],
    ["calls", cost((one) => String(one.calls))],
    ["errors", cost((one) => formatCounts({ ...one.refused, ...one.faults }) || "none"), "wrap"],
    ["time p50 / p99", cost((one) => `${formatDuration(one.wall_p50_us)} / ${formatDuration(one.wall_p99_us)}`)],
    ["CPU", cost((one) => formatDuration(one.cpu_us))],
    ["peak memory", cost((one) => formatBytes(one.peak_memory_bytes))],
    ["model tokens", cost((one) => String(one.model_tokens))],
    ["HTTP", cost((one) => String(one.http_calls))],
  ], rows);
}
