// Elements. Text is set as textContent only: replies, plugin names and errors are untrusted.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

/** An element; children are elements, or text. Attributes that are undefined, null or false are left out. */
function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function fragment(nodes) {
  const all = document.createDocumentFragment();
  all.append(...nodes);
  return all;
}

/** Shows text in an element, and hides the element if there is none. */
function showText(id, text) {
  const node = byId(id);
  node.textContent = text ?? "";
  node.hidden = !text;
}

/**
 * A table. A column is [title, cell, class]; `cell` returns the content for a row. Each cell names its column for narrow
 * screens.
 */
function table(name, columns, rows) {
  const head = columns.map(([title]) => element("th", {}, title));
  const body = rows.map((row) =>
    element("tr", {}, columns.map(([title, cell, className]) =>
      element("td", { "data-label": title, class: className }, cell(row)))));
  return element("table", { class: name },
    element("thead", {}, element("tr", {}, head)), element("tbody", {}, body));
}

/** Asks a question in the dialog and returns whether it was confirmed; with `details`, shows them without a question. */
function ask({ title, text, confirm, details }) {
  const dialog = byId("dialog");
  byId("dialog-title").textContent = title;
  showText("dialog-text", text);
  showText("dialog-details", details);
  byId("dialog-confirm").textContent = confirm ?? "Close";
  byId("dialog-cancel").hidden = !confirm;
  dialog.returnValue = "cancel";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "confirm"), { once: true });
    dialog.showModal();
  });
}
