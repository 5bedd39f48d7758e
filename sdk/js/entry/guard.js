// Wraps the author's exports in `plugin.js` so that exceptions are reported.
//
// An exception that is not an error of the contract would trap, and the host would see only `unreachable`. Here it becomes
// the error `internal` with the exception and the lines that led to it.

/** The functions that the component calls, by the name that the author exports. */
const FUNCTIONS = {
  judge: ["scoreTurn"],
  groupJudge: ["scoreGroup"],
  hintExtractor: ["extract"],
  filter: ["decide"],
  loss: ["evaluate"],
  pairLoss: ["evaluate"],
  advantage: ["compute"],
  gate: ["review"],
};
const SESSION = ["step", "grade", "close"];

const ERRORS = ["unsupported", "invalid-input", "denied", "transient", "internal"];

/** Maximum characters of a report, and of one exception's message in it. The host keeps 2 KiB. */
const MAX_REPORT = 1500;
const MAX_MESSAGE = 500;
/** Maximum stack frames in a report. */
const MAX_FRAMES = 12;

/**
 * Wraps the author's exports.
 * @param {object} plugin The author's module.
 * @param {{ write: Function } | null} log Where exceptions of `describe` are logged, which cannot return an error.
 */
export function wrapExports(plugin, log) {
  const wrapped = {};
  for (const [name, functions] of Object.entries(FUNCTIONS)) {
    const owner = plugin[name];
    if (owner === undefined) continue;
    wrapped[name] = {};
    for (const one of functions) wrapped[name][one] = wrap(owner, one);
  }
  // Its result cannot be an error.
  if (wrapped.loss !== undefined) wrapped.loss.describe = wrapLogging(plugin.loss, "describe", log);
  if (plugin.environment !== undefined) wrapped.environment = { Session: wrapSession(plugin.environment) };
  if (Object.keys(wrapped).length === 0) {
    const names = [...Object.keys(FUNCTIONS), "environment"];
    throw new Error(`plugin.js exports none of ${names.join(", ")}`);
  }
  return wrapped;
}

function wrapSession({ Session }) {
  const start = (task, seed) => {
    const [session, observation] = Session.reset(task, seed);
    // The component calls these on the object itself.
    for (const name of SESSION) session[name] = wrap(session, name);
    return [session, observation];
  };
  return { reset: wrap({ start }, "start") };
}

function wrap(owner, name) {
  const call = owner[name];
  if (typeof call !== "function") throw new Error(`plugin.js has no function ${name}`);
  return (...values) => {
    try {
      return call.apply(owner, values);
    } catch (error) {
      throw toContractError(error);
    }
  };
}

function wrapLogging(owner, name, log) {
  const call = owner[name];
  if (typeof call !== "function") throw new Error(`plugin.js has no function ${name}`);
  return (...values) => {
    try {
      return call.apply(owner, values);
    } catch (error) {
      if (log !== null) log.write("error", describe(error), []);
      throw error;
    }
  };
}

/** Converts an exception to an error of the contract. */
function toContractError(error) {
  const value = isHostError(error) ? error.payload : error;
  return isContractError(value) ? value : { tag: "internal", val: describe(error) };
}

/** Errors of host calls are thrown as an `Error` around the value. */
function isHostError(error) {
  return error instanceof Error && Object.hasOwn(error, "payload");
}

function isContractError(value) {
  const isObject = typeof value === "object" && value !== null;
  return isObject && ERRORS.includes(value.tag) && typeof value.val === "string";
}

/** Describes the exception and where it was thrown, in one line as the host reports it. */
function describe(error) {
  if (!(error instanceof Error)) return `${stringify(error)} was thrown`.slice(0, MAX_REPORT);
  const text = isHostError(error)
    ? `uncaught error of a host call: ${stringify(error.payload)}`
    : `${error.name}: ${String(error.message).slice(0, MAX_MESSAGE)}`;
  const frames = String(error.stack ?? "")
    .split("\n")
    .map((line) => line.trim().replace("(/", "("))
    .filter((line) => line.startsWith("at ") && !/build\/entry\/|\(native\)/.test(line));
  const where = frames.slice(0, MAX_FRAMES).join(", ");
  return (where === "" ? text : `${text} (${where})`).slice(0, MAX_REPORT);
}

function stringify(value) {
  try {
    const text = JSON.stringify(value) ?? String(value);
    return text.slice(0, MAX_MESSAGE);
  } catch {
    return String(value).slice(0, MAX_MESSAGE);
  }
}
