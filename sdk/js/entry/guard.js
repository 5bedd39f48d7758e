// What the component calls: the author's exports in `plugin.js`, behind a guard.
//
// Whatever a function throws that is no error of the contract would end the instance, and the host would see nothing but
// `unreachable`. Here it becomes the error `internal` with the exception and the lines that led to it.

/** What the component calls, by the name that the author exports. */
const FUNCTIONS = {
  judge: ["scoreTurn"],
  groupJudge: ["scoreGroup"],
  hintExtractor: ["extract"],
  loss: ["evaluate"],
  advantage: ["compute"],
};
const SESSION = ["step", "grade", "close"];

const ERRORS = ["unsupported", "invalid-input", "denied", "transient", "internal"];

/** Characters of a report, and of one exception's own words in it. The host keeps 2 KiB. */
const REPORT = 1500;
const WORDS = 500;
/** Places that a report names. */
const PLACES = 12;

/**
 * The author's exports, each behind the guard.
 * @param {object} plugin The author's module.
 * @param {{ write: Function } | null} log Where an exception is written that cannot be an error.
 */
export function entry(plugin, log) {
  const made = {};
  for (const [name, functions] of Object.entries(FUNCTIONS)) {
    const owner = plugin[name];
    if (owner === undefined) continue;
    made[name] = {};
    for (const one of functions) made[name][one] = guarded(owner, one);
  }
  // Its result cannot be an error.
  if (made.loss !== undefined) made.loss.describe = logged(plugin.loss, "describe", log);
  if (plugin.environment !== undefined) made.environment = { Session: session(plugin.environment) };
  if (Object.keys(made).length === 0) {
    const names = [...Object.keys(FUNCTIONS), "environment"];
    throw new Error(`plugin.js exports none of ${names.join(", ")}`);
  }
  return made;
}

function session({ Session }) {
  const start = (task, seed) => {
    const [session, observation] = Session.reset(task, seed);
    // The component calls these on the object itself.
    for (const name of SESSION) session[name] = guarded(session, name);
    return [session, observation];
  };
  return { reset: guarded({ start }, "start") };
}

function guarded(owner, name) {
  const call = owner[name];
  if (typeof call !== "function") throw new Error(`plugin.js has no function ${name}`);
  return (...values) => {
    try {
      return call.apply(owner, values);
    } catch (error) {
      throw answer(error);
    }
  };
}

function logged(owner, name, log) {
  const call = owner[name];
  if (typeof call !== "function") throw new Error(`plugin.js has no function ${name}`);
  return (...values) => {
    try {
      return call.apply(owner, values);
    } catch (error) {
      if (log !== null) log.write("error", report(error), []);
      throw error;
    }
  };
}

/** The error of the contract that stands for what was thrown. */
function answer(error) {
  const value = isOfHost(error) ? error.payload : error;
  return isAnswer(value) ? value : { tag: "internal", val: report(error) };
}

/** Errors of host calls are thrown as an `Error` around the value. */
function isOfHost(error) {
  return error instanceof Error && Object.hasOwn(error, "payload");
}

function isAnswer(value) {
  const isObject = typeof value === "object" && value !== null;
  return isObject && ERRORS.includes(value.tag) && typeof value.val === "string";
}

/** The exception and where it came from: one line, because the host makes one of it. */
function report(error) {
  if (!(error instanceof Error)) return `${shown(error)} was thrown`.slice(0, REPORT);
  const words = isOfHost(error)
    ? `nobody caught the error of a host call, ${shown(error.payload)}`
    : `${error.name}: ${String(error.message).slice(0, WORDS)}`;
  const places = String(error.stack ?? "")
    .split("\n")
    .map((line) => line.trim().replace("(/", "("))
    .filter((line) => line.startsWith("at ") && !/build\/entry\/|\(native\)/.test(line));
  const where = places.slice(0, PLACES).join(", ");
  return (where === "" ? words : `${words} (${where})`).slice(0, REPORT);
}

function shown(value) {
  try {
    const text = JSON.stringify(value) ?? String(value);
    return text.slice(0, WORDS);
  } catch {
    return String(value).slice(0, WORDS);
  }
}
