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

const promote = (version) => changeRelease({
  title: `Promote ${versionName(version)}?`, confirm: "Promote",
  text: `New requests are served by ${versionName(version)}, and training continues from it.`,
}, "POST", "/v1/adapters/promote", { version });

const pin = (version) => changeRelease({
  title: `Pin ${versionName(version)}?`, confirm: "Pin",
  text: `New requests are served by ${versionName(version)}, and training does not activate another until it is unpinned.`,
}, "POST", "/v1/adapters/pin", { version });

const unpin = (version) => changeRelease({
  title: `Unpin ${versionName(version)}?`, confirm: "Unpin",
  text: `It stays active until a training step publishes another version.`,
}, "DELETE", "/v1/adapters/pin");

const rollBack = (version) => changeRelease({
  title: `Roll back to ${versionName(version)}?`, confirm: "Roll back",
  text: `New requests are served by ${versionName(version)}, which was active before the last change.`,
}, "POST", "/v1/adapters/rollback");

/** The table of adapter versions; also updates the buttons and the state above it. */
function adapterTable({ release, adapters }) {
  const { version: active, pinned, back } = release;
  byId("release-state").textContent =
    `Active: ${versionName(active)}${pinned ? ", pinned" : ""}. Training continues from ${versionName(release.head)}.`;
  const rollback = byId("rollback");
  rollback.disabled = back === null || pinned;
  rollback.textContent = back === null ? "Roll back" : `Roll back to ${back}`;
  rollback.onclick = () => rollBack(back);
  byId("unpin").hidden = !pinned;
  byId("unpin").onclick = () => unpin(active);

  const rows = [{ version: 0, digest: "", state: "base model" }, ...adapters].reverse();
  const actions = ({ version }) => element("span", { class: "actions" },
    element("button", { type: "button", disabled: version === active || pinned, onclick: () => promote(version) }, "Promote"),
    element("button", { type: "button", disabled: version === active && pinned, onclick: () => pin(version) }, "Pin"));
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
