// SVG plots of series of points, like `chart.rs` draws them.

const PLOT = { width: 480, height: 150, left: 44, right: 8, top: 10, bottom: 20 };
/** Values in one point of the running mean. */
const WINDOW = 16;

function range(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const margin = low === high ? Math.max(Math.abs(low), 1) / 2 : 0;
  return { low: low - margin, high: high + margin };
}

/** A plot `{title, x, empty, series: [{name, shape: "dots" | "line" | "steps", points: [[x, y]]}]}` as a figure. */
function drawPlot({ title, x: xName, empty, series }) {
  const lines = series.map((line) => ({
    ...line, points: line.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)),
  }));
  const caption = element("figcaption", {}, title,
    lines.map(({ name }) => [" ", element("span", { class: `legend ${name}` }, name)]).flat());
  const points = lines.flatMap((line) => line.points);
  if (points.length === 0) return element("figure", {}, caption, element("p", { class: "none" }, empty));

  const across = range(points.map(([x]) => x));
  const up = range(points.map(([, y]) => y));
  const { width, height, left, right, top, bottom } = PLOT;
  const place = ({ low, high }, value) => (value - low) / (high - low);
  const x = (value) => left + place(across, value) * (width - left - right);
  const y = (value) => height - bottom - place(up, value) * (height - top - bottom);

  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const middle = (up.low + up.high) / 2;
  const counts = Number.isInteger(up.low) && Number.isInteger(up.high) && up.high - up.low > 2;
  for (const value of [up.low, middle, up.high]) {
    if (value === middle && counts && !Number.isInteger(middle)) continue;
    const at = y(value).toFixed(1);
    svg.append(
      svgElement("line", { class: "axis", x1: left, x2: width - right, y1: at, y2: at }),
      svgElement("text", { x: left - 5, y: (y(value) + 4).toFixed(1), "text-anchor": "end" }, formatNumber(value)));
  }
  svg.append(svgElement("text", { x: left, y: height - 5 }, xName));
  for (const { name, shape, points: own } of lines) {
    const at = own.map(([px, py]) => [x(px).toFixed(1), y(py).toFixed(1)]);
    if (shape === "dots" || at.length === 1) {
      svg.append(...at.map(([cx, cy]) => svgElement("circle", { class: name, cx, cy, r: 2.5 })));
    } else if (at.length > 1) {
      const path = at.flatMap(([px, py], index) =>
        shape === "steps" && index > 0 ? [`${px},${at[index - 1][1]}`, `${px},${py}`] : [`${px},${py}`]);
      svg.append(svgElement("polyline", { class: name, points: path.join(" ") }));
    }
  }
  return element("figure", {}, caption, svg);
}

/** The mean of each value and up to WINDOW - 1 before it. */
function runningMean(values) {
  return values.map((_, index) => {
    const window = values.slice(Math.max(0, index + 1 - WINDOW), index + 1);
    return window.reduce((total, value) => total + value, 0) / window.length;
  });
}
