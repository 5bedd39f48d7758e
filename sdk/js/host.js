/**
 * What a plugin asks of the host: log lines, settings, and which call this is.
 *
 * Works in a component only; that is why it is not part of `clawhost.js`.
 */

import context from "clawhost:plugin/context";
import log from "clawhost:plugin/log";

/**
 * A setting of this plugin from the operator's configuration, decoded from JSON.
 * @param {string} key
 * @param {*} [fallback] What stands for a setting that is not there.
 * @returns {*}
 */
export function setting(key, fallback = null) {
  const found = context.setting(key);
  return found === null || found === undefined ? fallback : JSON.parse(found);
}

/**
 * Which call this is. The seed is for whoever wants random numbers that can be repeated.
 * @returns {{ runId: string, plugin: string, sampleId: string, attempt: number, seed: number,
 *   deterministic: boolean, deadlineMs: number | null }}
 */
export function call() {
  return context.current();
}

/**
 * Writes a line at level `debug`. The host bounds the number and length of lines.
 * @param {string} message
 * @param {Record<string, unknown>} [fields]
 */
export function debug(message, fields = {}) {
  write("debug", message, fields);
}

/**
 * Writes a line at level `info`.
 * @param {string} message
 * @param {Record<string, unknown>} [fields]
 */
export function info(message, fields = {}) {
  write("info", message, fields);
}

/**
 * Writes a line at level `warn`.
 * @param {string} message
 * @param {Record<string, unknown>} [fields]
 */
export function warn(message, fields = {}) {
  write("warn", message, fields);
}

/**
 * Writes a line at level `error`.
 * @param {string} message
 * @param {Record<string, unknown>} [fields]
 */
export function error(message, fields = {}) {
  write("error", message, fields);
}

function write(level, message, fields) {
  const named = Object.entries(fields).map(([name, value]) => [name, String(value)]);
  log.write(level, message, named);
}
