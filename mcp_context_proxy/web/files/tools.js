// The page of tools: search as you type, each tool on or off, and its definition as a model gets it.

import { act, ask, byId, failed, keepFresh, open, takeToken, tell } from "./api.js";
import { button, counted, element, focusAgain, number } from "./view.js";

const TYPING_PAUSE_MS = 150;
const WAITING_MS = 400;
const SHOWN = 200;

const state = { answer: null, seen: "", ranked: [], title: "", asked: null, shown: SHOWN, opened: new Set() };

takeToken();
byId("server").dataset.wanted = new URLSearchParams(location.hash.slice(1)).get("server") ?? "";

/** All definitions are many bytes: they are asked for again only when the servers have changed. */
async function refresh() {
  const status = await ask("/status");
  const seen = JSON.stringify(status.servers.map(({ name, state: at, tools }) => [name, at, tools]));
  if (seen === state.seen && state.answer) return;
  state.answer = await ask("/tools");
  state.seen = seen;
  open();
  offerServers();
  render();
}

function offerServers() {
  const select = byId("server");
  const chosen = select.dataset.wanted || select.value;
  const { tools, turned_off: off } = state.answer;
  const names = [...new Set([...tools, ...off].map((one) => one.server))];
  select.replaceChildren(element("option", { value: "" }, "all"), ...names.map((name) => element("option", { value: name }, name)));
  select.value = names.includes(chosen) ? chosen : "";
  select.dataset.wanted = "";
}

function render() {
  if (!state.answer) return;
  const { tools, turned_off: off, total, default_list: list } = state.answer;
  byId("summary").textContent =
    `${counted(total.tools, "tool")}, ${number(total.tokens)} tokens if a model read them all. ` +
    (!total.tools ? "" : list.whole ? "It does: so few are listed whole." : `It reads ${counted(list.tools, "definition")} first, ${number(list.tokens)} tokens.`) +
    (off.length ? ` ${counted(off.length, "tool")} turned off.` : "");
  const focused = document.activeElement?.closest("#tools [data-key]")?.dataset.key;
  const query = byId("query").value.trim().toLowerCase();
  const server = byId("server").value;
  const of = (one) => !server || one.server === server;
  const known = new Map(tools.map((tool) => [tool.name, tool]));
  const best = query ? state.ranked.filter((one) => known.has(one.name)).map((one) => ({ ...known.get(one.name), score: one.score, why: one.why })).filter(of) : [];
  const named = new Set(best.map((one) => one.name));
  const words = query.split(/\s+/).filter(Boolean);
  const matches = (one) => words.every((word) => `${one.name} ${one.description ?? ""}`.toLowerCase().includes(word));
  const rest = tools.filter((one) => of(one) && !named.has(one.name) && matches(one));
  const turnedOff = off.filter((one) => of(one) && matches(one));
  const shown = rest.slice(0, state.shown);
  const more = rest.length - shown.length;
  byId("tools").replaceChildren(
    ...group(state.title, best),
    ...(query ? group("Also with these words", shown) : byServer(shown)),
    ...(more > 0 ? [button(`Show ${number(more)} more`, `Show ${number(more)} more tools`, showAll)] : []),
    ...group("Turned off", turnedOff),
    ...(best.length + rest.length + turnedOff.length ? [] : [element("p", {}, tools.length + off.length ? "No tool matches." : "No server has offered a tool yet.")]),
  );
  if (focused) byId("tools").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function showAll() {
  state.shown = Infinity;
  render();
}

function byServer(tools) {
  const groups = new Map();
  for (const one of tools) groups.set(one.server, [...(groups.get(one.server) ?? []), one]);
  return [...groups].flatMap(([name, own]) => group(name, own));
}

function group(title, tools) {
  if (!tools.length) return [];
  const count = element("span", { class: "count" }, number(tools.length));
  return [element("h2", {}, title, " ", count), element("ul", { class: "rows" }, ...tools.map(row))];
}

function row(one) {
  const off = one.reason !== undefined;
  const body = element("div", { class: "definition" });
  const details = element(
    "details",
    {},
    element(
      "summary",
      { "data-key": `summary ${one.name}` },
      element("span", { class: "name" }, element("span", { class: "server" }, one.server), " ", one.tool),
      one.score === undefined || one.score === null ? null : element("span", { class: "score", title: "Score" }, one.score.toFixed(2)),
      one.danger && one.danger !== "read" ? element("span", { class: `danger ${one.danger}`, title: one.danger_reason }, one.danger) : null,
      one.tokens === undefined ? null : element("span", { class: "cost" }, `${number(one.tokens)} tokens`),
      element("span", { class: "description" }, one.why ?? one.reason ?? firstLine(one.description)),
    ),
    body,
  );
  if (state.opened.has(one.name)) unfold(details, body, one);
  details.addEventListener("toggle", () => {
    if (details.open) unfold(details, body, one);
    else state.opened.delete(one.name);
  });
  const isOn = !off;
  const made = element(
    "button",
    { type: "button", role: "switch", class: "switch", "aria-checked": String(isOn), "aria-label": `${one.tool} of ${one.server}`, "data-key": `switch ${one.name}` },
    isOn ? "on" : "off",
  );
  made.addEventListener("click", () => turn(one, !isOn));
  return element("li", { class: off ? "row is-off" : "row", "data-name": one.name }, made, details);
}

/** A definition is built only when it is looked at. */
function unfold(details, body, one) {
  state.opened.add(one.name);
  details.open = true;
  if (body.childNodes.length) return;
  if (one.definition === undefined) {
    body.append(element("p", {}, "No model sees it, and a call says where it is turned off."));
    return;
  }
  body.append(
    element("p", { class: "facts" }, `A model that gets this definition reads about ${number(one.tokens)} tokens. ${found(one)}`),
    element("pre", { tabindex: "0", "aria-label": `Definition of ${one.name}` }, JSON.stringify(one.definition, null, 2)),
  );
}

function found(one) {
  if (one.include === "always") return "It is always listed.";
  if (one.include === "manual") return "No search finds it.";
  return one.working_set ? `It is listed: ${one.working_set}.` : "A search finds it.";
}

const firstLine = (text) => (text ?? "").trim().split("\n")[0];

/** Turn a tool on or off, and offer the way back. */
async function turn(one, on) {
  tell(`Turning ${on ? "on" : "off"} ${one.name}`);
  try {
    const { note, file } = await act(`/tools/${encodeURIComponent(one.name)}/${on ? "enable" : "disable"}`);
    const said = `${one.name} is turned ${on ? "on" : "off"} in ${file}. ${note ?? ""}`;
    byId("done").replaceChildren(
      element("p", { class: "done" }, said, " ", button("Undo", `Undo: turn ${on ? "off" : "on"} ${one.name}`, () => turn(one, !on))),
    );
    tell("");
  } catch (error) {
    failed(error);
  }
  state.seen = "";
  await look();
  focusAgain(`switch ${one.name}`);
}

/** Rank by the proxy's own search; an answer that something newer has overtaken is not shown. */
async function rank() {
  state.asked?.abort();
  const query = byId("query").value.trim();
  if (!query) {
    state.ranked = [];
    render();
    return;
  }
  const asked = (state.asked = new AbortController());
  // The best matches of what was typed before stay for a moment, so that the list does not jump.
  const waiting = setTimeout(() => {
    state.ranked = [];
    tell("Searching");
    render();
  }, WAITING_MS);
  try {
    const body = JSON.stringify({ query, record: false });
    const answer = await ask("/context", { method: "POST", body, signal: asked.signal });
    // An item that is part of every session has no score, and is no match.
    const found = answer.items.filter((item) => item.type === "tool" && item.score !== null);
    const near = answer.near_misses.filter((item) => item.type === "tool");
    state.title = found.length ? "Best matches" : "Nothing fits well. The nearest";
    state.ranked = (found.length ? found : near).sort((a, b) => b.score - a.score);
    tell(answer.note ?? "");
    render();
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  } finally {
    clearTimeout(waiting);
  }
}

let typing = null;
byId("query").addEventListener("input", () => {
  clearTimeout(typing);
  // Tools with these words are shown at once; the ranking follows.
  render();
  typing = setTimeout(rank, TYPING_PAUSE_MS);
});
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  rank();
});
byId("server").addEventListener("change", render);
const look = keepFresh(refresh);
