// Builds what is seen. All text comes from strangers: it becomes text nodes and attributes, never markup.

const COLUMNS = [
  ["rule", "Rules"],
  ["reference", "References"],
  ["tool", "Tools"],
];

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
      element("span", { class: "facts" }, moment(request.time), " \u00b7 ", tokens(request.tokens, behind)),
    ),
  );
}

/** A whole request context. */
export function contextView(request, behind, order, live) {
  const told = live ? ["not recorded"] : [date(request.time), request.origin];
  const session = request.session ? [`session ${request.session}`] : [];
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
  ].filter((part) => part !== null);
}

/** A notice that nothing fits the query, or no tool; null where something does. */
function outcome(request) {
  const found = request.items.some((item) => item.score !== null && item.include_mode !== "retained");
  const near = request.near_misses.length > 0;
  if (request.failure || !request.query || (found && !near)) return null;
  const said = found ? "No tool fits this query well." : near ? "Nothing fits this query well." : "Nothing fits this query.";
  return element("p", { class: "notice", id: "outcome" }, near ? `${said} The nearest are below.` : said);
}

/** What is shown of what is behind the proxy, as a bar and in words. */
export function shareOf(request, behind) {
  const max = Math.max(behind, request.tokens, 1);
  const bar = behind === null ? null : element("progress", { value: request.tokens, max, "aria-hidden": "true" });
  return element("p", { class: "share" }, bar, ` ${tokens(request.tokens, behind)} are shown`);
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
        element("span", { class: `badge ${item.include_mode}` }, item.include_mode),
        item.score === null ? null : element("span", { class: "score", title: "Score" }, item.score.toFixed(2)),
        item.priority === undefined
          ? null
          : element("span", { class: "priority", title: "Priority" }, String(item.priority).padStart(3, "0")),
        element("span", { class: "title" }, ...title(item)),
        item.danger === undefined || item.danger === "read"
          ? null
          : element("span", { class: `danger ${item.danger}`, title: item.danger_reason }, item.danger),
        description ? element("span", { class: "description" }, description) : null,
      ),
      element("p", { class: "why" }, `${capital(item.why)}. About ${number(item.tokens)} ${item.tokens === 1 ? "token" : "tokens"}.`),
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
    choice("name", "by priority and name"),
    choice("score", "by score"),
  );
}

/** Rules and references by priority, highest first, then by name; tools by server, then by name. */
function comparison(order) {
  const name = (a, b) => compare(a.server ?? "", b.server ?? "") || compare(a.name, b.name);
  if (order === "score") return (a, b) => (b.score ?? -1) - (a.score ?? -1) || name(a, b);
  return (a, b) => (b.priority ?? 0) - (a.priority ?? 0) || name(a, b);
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
