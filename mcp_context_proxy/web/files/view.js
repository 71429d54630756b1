// Builds what is seen. All text comes from strangers: it becomes text nodes and attributes, never markup.

const COLUMNS = [
  ["rule", "Rules"],
  ["reference", "References"],
  ["tool", "Tools"],
];

/** Words for the reasons why an item is in a context. */
const MODES = {
  always: "in every session",
  manual: "added by hand",
  agent: "matches the query",
  expansion: "related to a match",
  learned: "worked before",
  retained: "called recently",
  uncertain: "kept: little is known",
  working_set: "used often",
};

/** An element with attributes and children; text is only ever text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** One line of the list of requests. */
export function requestEntry(request, behind) {
  return element(
    "li",
    { "data-id": request.id },
    element(
      "a",
      { href: `#request=${encodeURIComponent(request.id)}` },
      element("span", { class: "query" }, request.query),
      element(
        "span",
        { class: "facts" },
        ...[moment(request.time), ...(request.client ? [request.client] : [])].flatMap((fact) => [fact, " \u00b7 "]),
        tokens(request.tokens, behind),
      ),
    ),
  );
}

/** A whole request context. */
export function contextView(request, behind, order, live) {
  const told = live ? ["not recorded"] : [date(request.time), request.origin];
  const client = request.client ? ` of ${request.client}` : "";
  const session = request.session ? [`session ${request.session}${client}`] : [];
  const facts = [...told, ...session, `built in ${milliseconds(request.seconds)}`].join(" \u00b7 ");
  return [
    element("h2", {}, live ? "Ranking for " : "", element("q", {}, request.query)),
    element("p", { class: "facts" }, facts),
    shareOf(request, behind),
    request.failure ? element("p", { class: "notice" }, `The search failed: ${request.failure}`) : null,
    outcome(request),
    request.note ? element("p", { class: "notice" }, request.note) : null,
    request.read_as ? element("p", { class: "facts" }, `Read as: ${request.read_as}`) : null,
    request.rerank ? element("p", { class: "facts" }, `Rerank: ${request.rerank.reason}`) : null,
    orderChoice(order),
    element("div", { class: "columns" }, ...COLUMNS.map(([type, title]) => column(type, title, request.items, order))),
    further("Nearest, but not part of the context", request.near_misses, "score"),
    further("Selected, and too dear for the token budget", request.dropped, order),
    remembered(request.interactions),
  ].filter((part) => part !== null);
}

/** A notice that nothing fits the query, or no tool; null where something does. */
function outcome(request) {
  const found = request.items.some((item) => item.score !== null && item.include_mode !== "retained");
  const near = request.near_misses.length > 0;
  const dear = request.dropped.length > 0;
  if (request.failure || !request.query || ((found || dear) && !near)) return null;
  const said = found ? "No tool fits this query well." : near ? "Nothing fits this query well." : "Nothing fits this query.";
  return element("p", { class: "notice", id: "outcome" }, near ? `${said} The nearest are below.` : said);
}

/** The remembered interactions of a context; their text is in the answer alone. */
function remembered(interactions) {
  if (!interactions.length) return null;
  const lines = interactions.map((one) => element("li", {}, `${one.interaction_type} of ${one.agent_name}, ${new Date(one.time * 1000).toLocaleString()}, ${counted(one.tokens, "token")}`));
  return element("section", {}, element("h3", {}, "Remembered"), element("ul", {}, ...lines));
}


/** What is shown of what is behind the proxy, as a bar and in words. */
export function shareOf(request, behind) {
  const max = Math.max(behind, request.tokens, 1);
  const bar = behind === null ? null : element("progress", { value: request.tokens, max, "aria-hidden": "true" });
  return element("p", { class: "share" }, bar, ` ${tokens(request.tokens, behind)} are shown, definitions counted whole`);
}

function column(type, title, items, order) {
  const own = items.filter((item) => item.type === type).sort(comparison(order));
  const id = `column-${type}`;
  return element(
    "section",
    { "aria-labelledby": id, "data-type": type },
    element("h3", { id }, `${title} `, element("span", { class: "count" }, String(own.length))),
    own.length ? element("ul", {}, ...own.map(card)) : element("p", { class: "none" }, "None"),
  );
}

function further(title, items, order) {
  if (!items.length) return null;
  const list = element("ul", {}, ...[...items].sort(comparison(order)).map(card));
  return element("section", { class: "further" }, element("h3", {}, title), list);
}

function card(item) {
  const description = item.description ?? "";
  return element(
    "li",
    { class: "item", title: description || null, "data-name": item.name },
    element(
      "details",
      {},
      element(
        "summary",
        {},
        element("span", { class: `badge ${item.include_mode}` }, MODES[item.include_mode] ?? item.include_mode),
        item.score === null ? null : element("span", { class: "score", title: "Score" }, item.score.toFixed(2)),
        item.priority === undefined
          ? null
          : element("span", { class: "priority", title: "Priority" }, String(item.priority).padStart(3, "0")),
        element("span", { class: "title" }, ...title(item)),
        item.danger === undefined || item.danger === "read"
          ? null
          : element("span", { class: `danger ${item.danger}`, title: item.danger_reason }, item.danger),
        element("span", { class: "why" }, `${capital(item.why)}. About ${counted(item.tokens, "token")}.`),
        description ? element("span", { class: "description" }, description) : null,
      ),
    ),
  );
}

/** The server before the tool; the exposed name begins with it, and saying it twice would hide the tool. */
function title(item) {
  if (!item.server) return [item.name];
  const own = item.name.startsWith(`${item.server}__`) ? item.name.slice(item.server.length + 2) : item.name;
  return [element("span", { class: "server" }, item.server), " ", own];
}

function orderChoice(order) {
  const choice = (value, label) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name: "order", value, checked: order === value }),
      ` ${label}`,
    );
  return element(
    "fieldset",
    { class: "order" },
    element("legend", {}, "Order"),
    choice("score", "by rank"),
    choice("name", "by priority and name"),
  );
}

/** Rules and references by priority, lowest number first, then by name; tools by server, then by name. */
function comparison(order) {
  const name = (a, b) => compare(a.server ?? "", b.server ?? "") || compare(a.name, b.name);
  const priority = (a, b) => (a.priority ?? 0) - (b.priority ?? 0) || name(a, b);
  if (order === "name") return priority;
  // What another item brought has the score of a link, which says nothing about the query.
  const rank = (item) => (item.include_mode === "expansion" ? -1 : (item.score ?? -2));
  return (a, b) => rank(b) - rank(a) || (b.score ?? 0) - (a.score ?? 0) || priority(a, b);
}

function compare(a, b) {
  return a < b ? -1 : Number(a > b);
}

/** Today only the time of day. */
function moment(seconds) {
  const time = new Date(seconds * 1000);
  const today = time.toDateString() === new Date().toDateString();
  return element("time", { datetime: time.toISOString() }, today ? time.toLocaleTimeString() : date(seconds));
}

function date(seconds) {
  return new Date(seconds * 1000).toLocaleString();
}

/** While the proxy still counts what is behind it, what is shown alone. */
function tokens(shown, behind) {
  return behind === null ? `${number(shown)} tokens` : `${number(shown)} of ${number(behind)} tokens`;
}


function milliseconds(seconds) {
  return `${(seconds * 1000).toFixed(1)} ms`;
}

/** With its thousands apart. */
export function number(value) {
  return value.toLocaleString("en");
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A button that does something; its name for those who hear it says to what. By its key it is found again. */
export function button(text, name, press, key = name) {
  const made = element("button", { type: "button", "data-key": key, "aria-label": name }, text);
  let busy = false;
  // A disabled button would lose the focus.
  made.addEventListener("click", async () => {
    if (busy) return;
    busy = true;
    await press();
    busy = false;
  });
  return made;
}

/** Put the focus back on something that was built anew, if it was lost with what it replaces. */
export function focusAgain(key) {
  if (document.activeElement && document.activeElement !== document.body) return;
  document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** Show a list of things; those that have not changed stay as they are, with what is open and in focus in them. */
export function keepList(list, things, keyOf, view) {
  const before = new Map([...list.children].map((entry) => [entry.dataset.key, entry]));
  const focused = document.activeElement?.closest("[data-key]");
  const within = list.contains(focused) ? focused.dataset.key : null;
  const entries = things.map((thing) => {
    const facts = JSON.stringify(thing);
    const old = before.get(keyOf(thing));
    if (old?.facts === facts) return old;
    const made = view(thing);
    made.facts = facts;
    made.dataset.key = keyOf(thing);
    const opened = new Set([...(old?.querySelectorAll("details[open]") ?? [])].map((one) => one.dataset.name));
    for (const details of made.querySelectorAll("details")) details.open = opened.has(details.dataset.name);
    return made;
  });
  if (entries.length === list.children.length && entries.every((entry, at) => entry === list.children[at])) return;
  list.replaceChildren(...entries);
  if (within !== null) list.querySelector(`[data-key="${CSS.escape(within)}"]`)?.focus();
}

export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function megabytes(bytes) {
  return `${number(Math.round(bytes / 1e6))} MB`;
}

export function duration(seconds) {
  if (seconds < 60) return "less than a minute";
  if (seconds < 3600) return counted(Math.floor(seconds / 60), "minute");
  if (seconds < 86400) return counted(Math.floor(seconds / 3600), "hour");
  return counted(Math.floor(seconds / 86400), "day");
}
