// Connects the page to the event stream, and shows each snapshot.

/** Name and scopes of the key. */
let caller = { key: null, scopes: [] };
let connection = new AbortController();

const hasScope = (scope) => caller.scopes.includes(scope);

function showCaller(data) {
  caller = data;
  clockOffset = data.now_ms - Date.now();
  byId("key-form").hidden = true;
  byId("main").hidden = false;
  byId("who").textContent = data.key === null ? "" : `key ${data.key}`;
  byId("forget-key").hidden = getKey() === null;
  byId("chat").hidden = !hasScope("chat");
  for (const node of document.querySelectorAll(".operator")) node.hidden = !hasScope("operator");
}

function showSnapshot(snapshot) {
  const { adapter, operator } = snapshot;
  byId("model").textContent = snapshot.model;
  byId("summary").replaceChildren("adapter ",
    element("code", {}, `${adapter.version}:${adapter.digest.slice(0, 12)}`),
    operator?.release.pinned ? " (pinned)" : "", " · up ", since(snapshot.started_ms, ""));
  byId("errors").replaceChildren(...snapshot.errors.map((error) => element("p", { class: "error" }, error)));
  byId("note").textContent = operator?.training?.stale_note ?? "";
  const { rewards, turns } = snapshot;
  show("plots", { rewards, steps: operator?.steps, releases: operator?.releases }, plots);
  if (shown.turns !== JSON.stringify(turns)) showExperience().catch((error) => showText("experience-error", error.message));
  show("turns", turns, turnTable);
  if (operator) {
    const { steps, release, adapters, owner, plugins, plugin_costs: costs } = operator;
    showOwners(operator);
    show("tiles", operator, tiles);
    show("steps", steps, stepTable);
    show("plugins", { plugins, costs }, pluginTable);
    const changes = owner !== null || !hasOwners(operator) ? { owner: owner?.name ?? null } : null;
    show("adapters", { release, adapters, changes }, adapterTable);
  }
  document.body.dataset.snapshots = Number(document.body.dataset.snapshots ?? 0) + 1;
}

/** The data that each part of the page shows, as JSON. */
const shown = {};

/** Draws a part of the page if its data has changed, unless the user selects text in it. */
function show(id, data, draw) {
  const node = byId(id);
  const json = JSON.stringify(data);
  const selection = getSelection();
  if (shown[id] === json || (!selection.isCollapsed && node.contains(selection.anchorNode))) return;
  shown[id] = json;
  node.replaceChildren(draw(data));
}

function showLive(text, className) {
  byId("live").textContent = text;
  byId("live").className = className;
}

/** Asks for a key; `error` says why the last one was not accepted. */
function askForKey(error) {
  showLive("", "");
  byId("main").hidden = true;
  byId("key-form").hidden = false;
  byId("forget-key").hidden = true;
  byId("who").textContent = "";
  showText("key-error", error);
  byId("key").focus();
}

function receive(name, data) {
  const content = JSON.parse(data);
  if (name === "caller") showCaller(content);
  else if (name === "snapshot") showSnapshot(content);
  else if (name === "error") byId("errors").replaceChildren(element("p", { class: "error" }, content.error.message));
}

/** Follows the event stream, and opens it again when it ends, at first soon and then less often. */
async function connect() {
  connection.abort();
  connection = new AbortController();
  const { signal } = connection;
  let wait = 1000;
  while (!signal.aborted) {
    try {
      await followEvents(signal, () => {
        showLive("live", "on");
        wait = 1000;
      }, receive);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403) {
        const rejected = getKey() !== null || error.status === 403;
        setKey(null);
        askForKey(rejected ? error.message : null);
        return;
      }
      if (error.status) byId("errors").replaceChildren(element("p", { class: "error" }, error.message));
    }
    if (signal.aborted) return;
    showLive("reconnecting", "off");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 15000);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setOwner(null);
  setKey(byId("key").value.trim());
  byId("key").value = "";
  connect();
});
byId("forget-key").addEventListener("click", () => {
  setKey(null);
  setOwner(null);
  // Everything on the page belongs to the key.
  location.reload();
});
setInterval(updateTimes, 1000);
startChat();
connect();
