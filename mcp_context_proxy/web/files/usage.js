// The page of usage: how tools and searches did over a period, and what was saved.

import { ask, byId, keepFresh, open, takeToken } from "./api.js";
import { usageView } from "./usage_view.js";

const SEARCHES = 20;

let shown = "";

takeToken();

const chosen = () => document.querySelector("#period input:checked").value;

async function refresh() {
  const period = chosen();
  const [tools, searches, timeline, latest, documents, learning] = await Promise.all([
    ask(`/statistics/tools?period=${period}`),
    ask(`/metrics/search?period=${period}`),
    ask(`/statistics/timeline?period=${period}`),
    ask(`/statistics/searches?limit=${SEARCHES}`),
    ask(`/statistics/documents?period=${period}`),
    ask(`/statistics/learning?period=${period}`),
  ]);
  open();
  if (period !== chosen()) return;
  // What has not changed stays as it is, with whatever a person has opened or is reading in it.
  const undated = [tools, searches, documents, learning].map((one) => ({ ...one, since: 0 }));
  const facts = JSON.stringify([undated, timeline.stretches, latest]);
  if (facts === shown) return;
  shown = facts;
  const opened = new Set([...document.querySelectorAll("#usage details[open]")].map((one) => one.dataset.name));
  const focused = document.activeElement?.closest("#usage details")?.dataset.name;
  byId("usage").replaceChildren(...usageView(tools, searches, timeline, latest.searches, documents, learning));
  for (const details of document.querySelectorAll("#usage details")) {
    details.open = opened.has(details.dataset.name);
    if (details.dataset.name === focused) details.querySelector("summary").focus();
  }
}

const look = keepFresh(refresh);
byId("period").addEventListener("change", () => look());
