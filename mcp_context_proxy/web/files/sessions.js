// The page of sessions: what each has in every context, and the forms to add, remove and save.

import { ask, byId, failed, keepFresh, open, takeToken, tell } from "./api.js";
import { button, counted, element, keepList } from "./view.js";

const KINDS = ["tool", "rule", "reference"];

takeToken();

async function refresh() {
  const [{ sessions }, presets, status] = await Promise.all([ask("/sessions"), presetsSaved(), hosts()]);
  open();
  const named = new Map(status.map((host) => [host.session, host]));
  keepList(byId("sessions"), sessions.map((one) => ({ ...one, host: named.get(one.id) ?? null })), (one) => one.id, card);
  byId("none").hidden = sessions.length > 0;
  keepList(byId("presets"), presets, (one) => one.name, presetView);
  byId("no-presets").hidden = presets.length > 0;
}

/** The hosts that are connected, and the saved presets; those who see only what is their own see neither. */
const hosts = () => forMore("/status", "hosts");
const presetsSaved = () => forMore("/presets", "presets");

async function forMore(path, member) {
  try {
    return (await ask(path))[member];
  } catch (error) {
    if (error.status !== 403) throw error;
    return [];
  }
}

function card(one) {
  const decided = new Set(one.by_person.map((item) => `${item.type} ${item.name}`));
  const facts = [
    one.kind === "handle" ? "a handle" : null,
    one.profile ? `profile ${one.profile}` : null,
    one.host?.folder,
    one.presets.length ? `begun with ${one.presets.join(", ")}` : null,
    `since ${new Date(one.created * 1000).toLocaleTimeString()}`,
    one.host?.name || one.client ? `session ${one.id}` : null,
  ];
  const items = [
    ...one.items.map((item) => itemView(one, item, item.why, "remove", decided)),
    ...one.removed.map((item) => itemView(one, item, "removed", "add", decided)),
  ];
  return element(
    "li",
    { class: "card", "data-name": one.id },
    element("div", { class: "head" }, element("h2", {}, one.host?.name || one.client || `Session ${one.id}`)),
    element("p", { class: "facts" }, facts.filter((fact) => fact).join(" \u00b7 ")),
    one.query ? element("p", { class: "facts" }, `Asked last: ${one.query}`) : null,
    items.length ? element("ul", { class: "items" }, ...items) : element("p", { class: "facts" }, "Nothing but what each query selects."),
    addForm(one),
    decided.size ? saveForm(one) : null,
  );
}

function itemView(one, item, why, verb, decided) {
  const key = `${item.type} ${item.name}`;
  const title = verb === "remove" ? "Remove" : "Add again";
  const byModel = (item.include_mode ?? "manual") === "manual" ? ", by the model" : "";
  const by = decided.has(key) ? ", by you" : byModel;
  return element(
    "li",
    {},
    element("code", {}, item.name),
    ` ${item.type}, ${why}${by} `,
    button(title, `${title}: ${item.name}`, () => change(one, { [verb]: [{ type: item.type, name: item.name }] }, `${title}: ${item.name}`), `${verb} ${one.id} ${key}`),
  );
}

function addForm(one) {
  const name = element("input", { type: "text", autocomplete: "off", spellcheck: "false", maxlength: "300", required: "", placeholder: "name", "aria-label": "Name of the item" });
  const kind = element("select", { "aria-label": "Type of the item" }, ...KINDS.map((word) => element("option", { value: word }, word)));
  return form(one, "add", "Add", [kind, name], () => change(one, { add: [{ type: kind.value, name: name.value.trim() }] }, `Added: ${name.value.trim()}`));
}

function saveForm(one) {
  const name = element("input", { type: "text", autocomplete: "off", spellcheck: "false", maxlength: "32", required: "", placeholder: "name of the preset", "aria-label": "Name of the preset" });
  return form(one, "save", "Save as preset", [name], () => save(one, name.value.trim()));
}

function form(one, what, title, fields, submit) {
  const press = element("button", { type: "submit" }, title);
  const made = element("form", { class: "actions", "data-name": `${what} ${one.id}` }, ...fields, " ", press);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  return made;
}

async function change(one, changes, done) {
  await attempt(() => ask(`/sessions/${encodeURIComponent(one.id)}/context`, { method: "PATCH", body: JSON.stringify(changes) }), done);
}

async function save(one, name) {
  await attempt(() => ask("/presets", { method: "POST", body: JSON.stringify({ name, session: one.id }) }), `Saved as preset ${name}`);
}

function presetView(one) {
  const options = optionsOf(one.options);
  const told = [`${counted(one.added.length, "item")} added`, `${one.removed.length} removed`, ...options].join(" \u00b7 ");
  return element(
    "li",
    { class: "card", "data-name": one.name },
    element("h3", {}, one.name),
    element("p", { class: "facts" }, told),
    element("p", { class: "actions" }, button("Forget", `Forget ${one.name}`, () => attempt(() => ask(`/presets/${encodeURIComponent(one.name)}`, { method: "DELETE" }), `Forgotten: ${one.name}`))),
  );
}

/** The options that are set, by the names that the configuration has for them. */
const optionsOf = (options, table = "") =>
  Object.entries(options ?? {}).flatMap(([name, value]) => {
    if (value === null) return [];
    return typeof value === "object" ? optionsOf(value, `${table}${name}.`) : [`${table}${name} = ${value}`];
  });

async function attempt(what, done) {
  try {
    await what();
    byId("done").replaceChildren(element("p", { class: "done" }, `${done}.`));
    tell("");
  } catch (error) {
    failed(error);
  }
  look();
}

const look = keepFresh(refresh);
