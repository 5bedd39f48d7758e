// The owner of adapters whose records the page shows, if each key or user has an adapter. The choice is kept in this tab.

const OWNER = "clawhost_owner";

/** The chosen owner, or null for all. */
const getOwner = () => sessionStorage.getItem(OWNER);
const setOwner = (owner) => (owner ? sessionStorage.setItem(OWNER, owner) : sessionStorage.removeItem(OWNER));

/** The query of a request about an owner; of none without one. */
const ownerQuery = (owner) => (owner === null ? "" : `?owner=${encodeURIComponent(owner)}`);

const ownerNames = (owner) => (owner === "shared" ? "everybody (shared)" : owner);

/** Whether anybody has an adapter of their own. */
const hasOwners = ({ owners }) => owners.some((owner) => owner !== "shared");

/** Updates the choice. An owner without training steps is listed while chosen. */
function showOwners(operator) {
  const chosen = getOwner();
  byId("owners").hidden = chosen === null && !hasOwners(operator);
  const names = [...new Set([...(chosen === null ? [] : [chosen]), ...operator.owners])].sort();
  const option = (value, text) => element("option", { value, selected: value === (chosen ?? "") }, text);
  const select = byId("owner");
  const listed = JSON.stringify([chosen, names]);
  // Otherwise an open list would close.
  if (select.dataset.listed === listed) return;
  select.dataset.listed = listed;
  select.replaceChildren(option("", "all owners"), ...names.map((name) => option(name, ownerNames(name))));
}

byId("owner").addEventListener("change", () => {
  setOwner(byId("owner").value);
  connect();
});
