// Experience: what is kept of corrections. Read when the turns of the page change, because judging adds entries.

/** Sends a change of an entry, and reads the entries again. */
async function changeEntry(method, id, body) {
  showText("experience-error", null);
  try {
    await send(method, `/v1/experience/${id}`, body);
  } catch (error) {
    showText("experience-error", error.message);
  }
  await showExperience();
}

async function deleteEntry({ id, text }) {
  const question = { title: "Delete this entry?", text, confirm: "Delete" };
  if (await ask(question)) await changeEntry("DELETE", id);
}

/** The text of an entry, which can be edited. */
function entryText(entry) {
  const input = element("textarea", { rows: 2, maxlength: 4096, "aria-label": `Text of entry ${entry.id}` }, entry.text);
  input.addEventListener("change", () => changeEntry("PUT", entry.id, { text: input.value }));
  return input;
}

function experienceTable(entries) {
  const isActive = (entry) => entry.state === "active";
  const state = (entry) => element("span", {}, isActive(entry) ? element("b", { class: "good" }, "active") : "retired",
    entry.reason ? element("small", {}, entry.reason) : null);
  const gap = (entry) => (entry.gap === null ? "–" : `${entry.gap.toFixed(3)} in ${entry.distilled}`);
  const actions = (entry) => element("span", { class: "actions" },
    element("button", {
      type: "button", onclick: () => changeEntry("PUT", entry.id, { state: isActive(entry) ? "retired" : "active" }),
    }, isActive(entry) ? "Retire" : "Activate"),
    element("button", { type: "button", onclick: () => deleteEntry(entry) }, "Delete"));
  return table("experience", [
    ["text", entryText, "text"],
    ["key", (entry) => entry.key ?? "–"],
    ["seen", (entry) => `${entry.turns.length}, last ${new Date(entry.last_ms).toLocaleString()}`, "wrap"],
    ["state", state, "wrap"],
    ["gap", gap],
    ["change", actions, "change"],
  ], entries);
}

/** Reads the entries and shows them, unless one is being edited. */
async function showExperience() {
  if (!hasScope("chat") && !hasScope("operator")) return;
  const { mode, data } = await getJson("/v1/experience");
  byId("experience-section").hidden = mode === "off" && data.length === 0;
  if (byId("experience").contains(document.activeElement)) return;
  show("experience", data, experienceTable);
}
