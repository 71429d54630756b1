// Builds what is seen of usage. Names and queries come from strangers: they become text, never markup.

import { element, number } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const LISTED = 5;
const FAILING_CALLS = 3;
const BAR = 12;
const GAP = 2;
const FEWEST = 14;
const HEIGHT = 100;
const NONE = "none yet";

const CALLS = ["Calls", (one) => number(one.calls)];
const FAILURES = ["Failed", (one) => (one.errors ? percent(one.errors, one.calls) : "\u2013")];
const MEDIAN = ["p50", (one) => duration(one.latency.p50_ms)];
const SLOWEST = ["p95", (one) => duration(one.latency.p95_ms)];
const RESULT = ["Result", (one) => bytes(one.result_bytes)];
const TOKENS = ["Tokens", (one) => (one.tokens === null ? "\u2013" : number(one.tokens))];
const LAST = ["Last used", (one) => date(one.last_used)];

const SLOW = [CALLS, MEDIAN, SLOWEST];
const FAILED = [CALLS, FAILURES, LAST];
const ALL = [CALLS, FAILURES, MEDIAN, SLOWEST, RESULT, TOKENS, LAST];

const MEASURES = [
  ["Shown and called", "precision"],
  ["First tool called", "acceptance"],
  ["Rank of the called", "rank"],
];

/** Everything the page shows, top down. */
export function usageView(tools, searches, timeline, latest, documents, learning) {
  const calls = total(tools.tools, "calls");
  return [
    tools.enabled ? null : element("p", { class: "notice" }, "Counting is switched off. This is what was counted before."),
    tiles(tools.tools, calls, searches),
    element(
      "div",
      { class: "charts" },
      chart("saved", "Tokens shown, of those behind the proxy", timeline, ["shown", "behind"], ["Shown", "Behind"]),
      chart("calls", "Calls that failed, of all calls", timeline, ["errors", "calls"], ["Failed", "Calls"]),
    ),
    element(
      "div",
      { class: "charts" },
      section("slow", "Slowest", toolTable(slowest(tools.tools), SLOW, "No call has been timed yet.")),
      section("failing", "Failing most", toolTable(failing(tools.tools), FAILED, "No failing tools (from 3 calls on).")),
    ),
    comparison(learning),
    neverCalled(tools.unused),
    section("tools", "Most called", toolTable(tools.tools, ALL, "No tool was called.")),
    documents.documents.length || documents.unused.length ? documentUse(documents) : null,
    section("searches", "Latest searches", searchTable(latest)),
  ].filter((part) => part !== null);
}

function tiles(tools, calls, searches) {
  const { shown, behind, saved } = searches.tokens;
  const some = searches.searches > 0;
  return element(
    "dl",
    { class: "tiles" },
    ...tile("Calls", number(calls), calls ? `${percent(total(tools, "errors"), calls)} failed` : NONE),
    ...tile("Searches", number(searches.searches), some ? `median ${duration(searches.latency.p50_ms)}` : NONE),
    ...tile("First result used", share(searches.acceptance_rate), some ? `any result: ${share(searches.use_rate)}` : NONE),
    ...tile(
      "Tokens saved",
      behind ? percent(saved, behind) : "\u2013",
      behind ? `${number(shown)} shown of ${number(behind)}, estimated` : "nothing to compare with yet",
    ),
  );
}

function tile(name, value, told) {
  const facts = [element("dd", { class: "value" }, value), element("dd", { class: "told" }, told)];
  return [element("div", {}, element("dt", {}, name), ...facts)];
}

/** Bars of a part and its whole over time, and the same as a table. */
function chart(name, title, timeline, [part, whole], [partName, wholeName]) {
  const stretches = timeline.stretches;
  const most = Math.max(...stretches.map((one) => one[whole]), 1);
  if (!stretches.some((one) => one[whole])) return section(name, title, none("Nothing to show yet."));
  const bars = stretches.map((one, at) => {
    const told = `${moment(one.start, timeline.seconds)}: ${number(one[part])} of ${number(one[whole])}`;
    const bar = [["whole", one[whole]], ["part", one[part]]].map(([kind, value]) => rect(kind, at, value / most));
    return shape("g", {}, shape("title", {}, told), rect("back", at, 1), ...bar);
  });
  // The newest is at the right: where there are few, what came before them is empty, not stretched.
  const places = Math.max(stretches.length, FEWEST);
  const viewBox = `${(stretches.length - places) * BAR} 0 ${places * BAR} ${HEIGHT}`;
  const summary = `${title}: ${number(total(stretches, part))} of ${number(total(stretches, whole))}`;
  const drawn = shape("svg", { viewBox, preserveAspectRatio: "none", role: "img", "aria-label": summary }, ...bars);
  const ends = element(
    "p",
    { class: "axis" },
    element("span", {}, moment(stretches.at(-1).start - (places - 1) * timeline.seconds, timeline.seconds)),
    element("span", {}, moment(stretches.at(-1).start, timeline.seconds)),
  );
  const rows = [...stretches].reverse().filter((one) => one[whole]);
  const numbers = table(
    [timeline.seconds < 86400 ? "Hour" : "Day", wholeName, partName],
    rows.map((one) => [moment(one.start, timeline.seconds), number(one[whole]), number(one[part])]),
  );
  const key = element(
    "p",
    { class: "key" },
    element("span", { class: "part" }, partName),
    element("span", { class: "whole" }, wholeName),
  );
  return section(name, title, key, drawn, ends, details(name, "As a table", numbers));
}

function rect(kind, at, height) {
  const drawn = height * HEIGHT;
  return shape("rect", { class: kind, x: at * BAR, y: HEIGHT - drawn, width: BAR - GAP, height: drawn });
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function neverCalled(unused) {
  if (!unused.known) return section("unused", "Not called", none("Counting tools \u2026"));
  const newer = `${number(unused.newer)} not called yet, but known for less than ${unused.days} days.`;
  if (!unused.count) {
    return section("unused", "Not called", none(unused.newer ? newer : `Every tool was called within ${unused.days} days.`));
  }
  const tools = `${number(unused.count)} ${unused.count === 1 ? "tool was" : "tools were"} not called in ${unused.days} days.`;
  const saved = `Turn these off and save about ${number(unused.tokens)} tokens`;
  const where = unused.listed ? "of every request." : "of what is behind the proxy.";
  const rows = unused.tools.map((one) => [toolName(one), number(one.tokens), date(one.first_seen)]);
  const more = unused.count - unused.tools.length;
  return section(
    "unused",
    "Not called",
    element("p", {}, `${tools} `, element("strong", {}, `${saved} ${where}`)),
    element(
      "p",
      { class: "facts" },
      element("code", {}, "enabled = false"),
      " turns off a tool under ",
      element("code", {}, "[servers.NAME.tools.TOOL]"),
      ", and a whole server under ",
      element("code", {}, "[servers.NAME]"),
      ".",
    ),
    unused.newer ? element("p", { class: "facts" }, `A further ${newer}`) : null,
    details("unused", "Show them", table(["Tool", "Tokens", "Known since"], rows)),
    more > 0 ? element("p", { class: "facts" }, `The dearest ${number(unused.tools.length)} are listed.`) : null,
  );
}

/** Requests with and without learned pairs; null where none were compared. */
function comparison({ learned, plain, difference, seconds, stretches }) {
  if (!learned.requests && !plain.requests) return null;
  const rows = MEASURES.map(([name, key]) => [
    name,
    estimate(learned[key], key),
    estimate(plain[key], key),
    element("span", { class: verdict(difference[key], key) }, estimate(difference[key], key, true)),
  ]);
  const over = [...stretches].reverse().map((one) => [
    moment(one.start, seconds),
    number(one.learned.requests),
    number(one.plain.requests),
    ...MEASURES.flatMap(([, key]) => [estimate(one.learned[key], key), estimate(one.plain[key], key)]),
  ]);
  const heading = ["With", "Without"];
  const measured = MEASURES.flatMap(([name]) => heading.map((one) => `${name}: ${one.toLowerCase()}`));
  return section(
    "learning",
    "With and without learned pairs",
    element(
      "p",
      { class: "facts" },
      `${number(learned.requests)} requests of ${number(learned.units)} sessions with, `,
      `${number(plain.requests)} of ${number(plain.units)} without. In brackets: the interval of 95 %; `,
      "none with fewer than 20 sessions on a side.",
    ),
    table(["", ...heading, "Difference"], rows),
    details("learning", "Over time", table([seconds <= 86400 ? "Day" : "Week", ...heading, ...measured], over)),
  );
}

function estimate(one, key, signed = false) {
  if (one === null) return "\u2013";
  const told = (value) => {
    const text = key === "rank" ? value.toFixed(1) : (value * 100).toFixed(0);
    return signed && value > 0 ? `+${text}` : text;
  };
  const unit = key === "rank" ? "" : signed ? " points" : " %";
  return one.low === null ? `${told(one.value)}${unit}` : `${told(one.value)}${unit} (${told(one.low)} to ${told(one.high)})`;
}

/** Whether a difference is more than chance: a lower place is a better one. */
function verdict(one, key) {
  if (one === null || one.low === null || (one.low <= 0 && one.high >= 0)) return "";
  return one.low > 0 === (key !== "rank") ? "better" : "worse";
}

function documentUse({ documents, unused }) {
  const name = (one) => element("span", {}, element("span", { class: "server" }, one.kind), " ", one.name);
  const rows = documents.map((one) => [
    name(one),
    number(one.found),
    number(one.delivered),
    number(one.reads),
    one.tokens === null ? "\u2013" : number(one.tokens),
    date(one.last_used),
  ]);
  const headings = ["Document", "Found", "Given", "Read", "Tokens", "Last used"];
  const never = unused.map((one) => [name(one), number(one.tokens), date(one.first_seen)]);
  const told = `${number(unused.length)} ${unused.length === 1 ? "was" : "were"} not found, given or read in 30 days. `;
  return section(
    "documents",
    "Rules and references",
    rows.length ? table(headings, rows) : none("None was used."),
    unused.length
      ? element("p", { class: "facts" }, told, "Remove the files that nobody needs, or say in their front matter what they are for.")
      : null,
    unused.length ? details("unused-documents", "Show them", table(["Document", "Tokens", "Known since"], never)) : null,
  );
}

function slowest(tools) {
  const timed = tools.filter((one) => one.latency.p95_ms !== null);
  return timed.sort((a, b) => b.latency.p95_ms - a.latency.p95_ms).slice(0, LISTED);
}

function failing(tools) {
  const some = tools.filter((one) => one.errors && one.calls >= FAILING_CALLS);
  return some.sort((a, b) => a.success_rate - b.success_rate || b.errors - a.errors).slice(0, LISTED);
}

function toolTable(tools, columns, otherwise) {
  if (!tools.length) return none(otherwise);
  const rows = tools.map((one) => [toolName(one), ...columns.map(([, told]) => told(one))]);
  return table(["Tool", ...columns.map(([heading]) => heading)], rows);
}

function searchTable(searches) {
  if (!searches.length) return none("Nothing was searched.");
  const rows = searches.map((one) => [
    one.query ?? element("span", { class: "none" }, "(not kept)"),
    words(one.top ?? "\u2013"),
    words(one.chosen === null ? "\u2013" : one.accepted ? "the first" : `${one.chosen} (${one.rank ?? "\u2013"})`),
    duration(one.latency_ms),
    date(one.time),
  ]);
  return table(["Query", words("First result"), words("Used"), "Took", "When"], rows);
}

function words(text) {
  return element("span", { class: "words" }, text);
}

/** A table that scrolls by itself, also by the keyboard. In a narrow window each cell has its heading before it. */
function table(headings, rows) {
  const named = headings.map((one) => one.textContent ?? one);
  const head = element("tr", {}, ...headings.map((one) => element("th", { scope: "col" }, one)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((one, at) => element("td", { "data-heading": named[at] }, one))));
  const whole = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": named.join(", ") }, whole);
}

function section(name, title, ...parts) {
  const id = `usage-${name}`;
  return element("section", { class: "block", "aria-labelledby": id }, element("h2", { id }, title), ...parts);
}

function details(name, title, ...parts) {
  return element("details", { "data-name": name }, element("summary", {}, title), ...parts);
}

function none(text) {
  return element("p", { class: "none" }, text);
}

function toolName(tool) {
  return element("span", {}, element("span", { class: "server" }, tool.server), " ", tool.name);
}

function total(list, key) {
  return list.reduce((sum, one) => sum + one[key], 0);
}

function percent(part, whole) {
  return whole ? share(part / whole) : "\u2013";
}

function share(value) {
  return value === null ? "\u2013" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

function duration(ms) {
  if (ms === null) return "\u2013";
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function bytes(size) {
  if (size < 1000) return `${size.toFixed(0)} B`;
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** An hour in local time, or a day, which is one of UTC. */
function moment(start, seconds) {
  const time = new Date(start * 1000);
  if (seconds >= 86400) return time.toLocaleDateString(undefined, { timeZone: "UTC" });
  return time.toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" });
}

function date(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
}
