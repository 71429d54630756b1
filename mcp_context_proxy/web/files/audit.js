// The page of the audit: what was called, refused, asked and changed. It is for administrators; names come from
// strangers, and become text, never markup.

import { ask, byId, keepFresh, open, takeToken } from "./api.js";
import { element } from "./view.js";

/** Entries that the page shows. */
const MOST = 200;

let shown = "";

takeToken();

const chosen = () => document.querySelector("#period input:checked").value;

async function refresh() {
  const period = chosen();
  const answer = await ask(`/audit?since=${period}&limit=${MOST}`);
  open();
  if (period !== chosen()) return;
  const facts = JSON.stringify(answer);
  if (facts === shown) return;
  shown = facts;
  byId("audit").replaceChildren(view(answer));
}

function view({ enabled, entries }) {
  if (!enabled) return element("p", { class: "notice" }, "Nothing is recorded: the audit is switched off.");
  if (!entries.length) return element("p", {}, "Nothing was recorded in this time.");
  const head = ["Time", "Kind", "Entry"].map((text) => element("th", { scope: "col" }, text));
  const rows = entries.map(({ time, kind, summary }) =>
    element(
      "tr",
      {},
      element("td", {}, new Date(time * 1000).toLocaleString()),
      element("td", {}, kind),
      element("td", {}, summary),
    ),
  );
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  const told = `The latest ${MOST} entries of this time. mcp-context-proxy audit --since ${chosen()} has all of them.`;
  return element("div", {}, entries.length < MOST ? null : element("p", { class: "facts" }, told), table);
}

const look = keepFresh(refresh);
byId("period").addEventListener("change", () => look());
