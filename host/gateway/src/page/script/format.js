// Numbers and times, formatted like `html.rs` does.

/** Difference between the clocks of the server and of this browser, in ms. */
let clockOffset = 0;

const now = () => Date.now() + clockOffset;

function formatElapsed(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** An element with the time since `ms`, which `updateTimes` keeps up to date. */
function since(ms, after = " ago") {
  const text = formatElapsed(now() - ms) + after;
  return element("time", { "data-ms": ms, "data-after": after, title: new Date(ms).toLocaleString() }, text);
}

function updateTimes() {
  for (const node of document.querySelectorAll("time[data-ms]")) {
    const text = formatElapsed(now() - Number(node.dataset.ms)) + node.dataset.after;
    if (node.textContent !== text) node.textContent = text;
  }
}

function formatNumber(number) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e6) return String(number);
  if (size >= 0.001 && size < 10) return number.toFixed(3);
  if (size >= 10 && size < 1e6) return number.toFixed(1);
  return number.toExponential(1).replace("e+", "e");
}

const formatSigned = (number) => (number > 0 ? "+" : "") + number.toFixed(2);

function formatDuration(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(1)} ms`;
  return `${(us / 1e6).toFixed(1)} s`;
}

function formatBytes(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1 << 20) return `${(bytes / 1024).toFixed(0)} KiB`;
  return `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

/** `{"complete": 3}` as `complete 3`. */
const formatCounts = (counts) => Object.entries(counts).map(([name, count]) => `${name} ${count}`).join(", ");

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
