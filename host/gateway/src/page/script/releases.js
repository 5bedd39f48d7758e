// Adapter versions: promote, roll back, pin and unpin, each after a confirmation that names the version.

const versionName = (version) => (version === 0 ? "the base model (version 0)" : `version ${version}`);

/** Asks, sends the change, and shows the error of the API if there is one. */
async function changeRelease(question, method, path, body) {
  if (!(await ask(question))) return;
  showText("release-error", null);
  try {
    await send(method, path, body);
  } catch (error) {
    showText("release-error", error.message);
  }
}

const promote = (version, query) => changeRelease({
  title: `Promote ${versionName(version)}?`, confirm: "Promote",
  text: `New requests are served by ${versionName(version)}, and training continues from it.`,
}, "POST", `/v1/adapters/promote${query}`, { version });

const pin = (version, query) => changeRelease({
  title: `Pin ${versionName(version)}?`, confirm: "Pin",
  text: `New requests are served by ${versionName(version)}, and training does not activate another until it is unpinned.`,
}, "POST", `/v1/adapters/pin${query}`, { version });

const unpin = (version, query) => changeRelease({
  title: `Unpin ${versionName(version)}?`, confirm: "Unpin",
  text: `It stays active until a training step publishes another version.`,
}, "DELETE", `/v1/adapters/pin${query}`);

const rollBack = (version, query) => changeRelease({
  title: `Roll back to ${versionName(version)}?`, confirm: "Roll back",
  text: `New requests are served by ${versionName(version)}, which was active before the last change.`,
}, "POST", `/v1/adapters/rollback${query}`);

/**
 * The table of adapter versions; also updates the buttons and the state above it. `changes` names the owner whose versions
 * are shown, and is null if they are of several, which cannot be changed together.
 */
function adapterTable({ release, adapters, changes }) {
  byId("rollback").hidden = changes === null;
  if (changes === null) return adaptersOfAll(adapters);
  const query = ownerQuery(changes.owner);
  const { version: active, pinned, back } = release;
  byId("release-state").textContent =
    `Active: ${versionName(active)}${pinned ? ", pinned" : ""}. Training continues from ${versionName(release.head)}.`;
  const rollback = byId("rollback");
  rollback.disabled = back === null || pinned;
  rollback.textContent = back === null ? "Roll back" : `Roll back to ${back}`;
  rollback.onclick = () => rollBack(back, query);
  byId("unpin").hidden = !pinned;
  byId("unpin").onclick = () => unpin(active, query);

  const rows = [{ version: 0, digest: "", state: "base model" }, ...adapters].reverse();
  const actions = ({ version }) => element("span", { class: "actions" },
    element("button", { type: "button", disabled: version === active || pinned, onclick: () => promote(version, query) }, "Promote"),
    element("button", { type: "button", disabled: version === active && pinned, onclick: () => pin(version, query) }, "Pin"));
  const state = (row) => (row.version === active
    ? element("b", { class: "good" }, pinned ? "active, pinned" : "active") : row.state);
  return table("adapters", [
    ["version", (row) => String(row.version)],
    ["state", state],
    ["created", (row) => (row.created_ms ? since(row.created_ms) : "–")],
    ["from", (row) => (row.version === 0 ? "–" : String(row.parent))],
    ["digest", (row) => row.digest.slice(0, 12) || "–", "id"],
    ["change", actions, "change"],
  ], rows);
}

/** The versions of all owners, each active for its owner only. */
function adaptersOfAll(adapters) {
  byId("release-state").textContent = "Each owner has an active version. Choose an owner to change it.";
  byId("unpin").hidden = true;
  if (adapters.length === 0) return none("No versions yet.");
  return table("adapters", [
    ["version", (row) => String(row.version)],
    ["owner", (row) => ownerNames(row.owner ?? "shared"), "wrap"],
    ["state", (row) => (row.state === "active" ? element("b", { class: "good" }, row.state) : row.state)],
    ["created", (row) => since(row.created_ms)],
    ["from", (row) => String(row.parent)],
    ["digest", (row) => row.digest.slice(0, 12), "id"],
  ], [...adapters].reverse());
}
