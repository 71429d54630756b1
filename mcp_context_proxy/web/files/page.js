// The page of request contexts: which there are, and one of them.

import { ask, byId, keepFresh, open, takeToken, tell } from "./api.js";
import { contextView, requestEntry, shareOf } from "./view.js";

const LISTED = 100;
const TYPING_PAUSE_MS = 120;

const state = { behind: null, shown: null, live: false, order: null, asked: null };

takeToken();

async function refresh() {
  const { requests, tokens_behind } = await ask(`/requests?limit=${LISTED}`);
  open();
  list(requests, tokens_behind);
  if (state.shown === null && !state.live) await showChosen();
}

function list(requests, behind) {
  const entries = byId("requests");
  const known = new Map([...entries.children].map((entry) => [entry.dataset.id, entry]));
  const changed = behind !== state.behind;
  state.behind = behind;
  const wanted = requests.map((one) => (!changed && known.get(one.id)) || requestEntry(one, behind));
  const focused = document.activeElement?.closest("#requests li")?.dataset.id;
  if (wanted.length !== entries.children.length || wanted.some((entry, at) => entry !== entries.children[at])) {
    entries.replaceChildren(...wanted);
    if (focused) entries.querySelector(`[data-id="${CSS.escape(focused)}"] a`)?.focus();
  }
  byId("no-requests").hidden = requests.length > 0;
  if (changed && state.shown) byId("context").querySelector(".share")?.replaceWith(shareOf(state.shown, behind));
  mark();
}

/** The request that the address names, else the latest. */
async function showChosen() {
  const named = new URLSearchParams(location.hash.slice(1)).get("request");
  const id = named ?? byId("requests").firstElementChild?.dataset.id;
  if (!id) return;
  show(await ask(`/requests/${encodeURIComponent(id)}?describe=true`), false);
}

function show(request, live) {
  state.shown = request;
  state.live = live;
  render();
  mark();
}

function render() {
  if (state.shown === null) return;
  const order = state.order ?? "score";
  byId("context").replaceChildren(...contextView(state.shown, state.behind, order, state.live));
}

/** Say which request of the list is shown. */
function mark() {
  for (const link of byId("requests").querySelectorAll("a")) {
    const shown = !state.live && link.parentElement.dataset.id === state.shown?.id;
    if (shown) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

/** Show the ranking for what is typed; an answer that something newer has overtaken is not shown. */
async function preview() {
  state.asked?.abort();
  const query = byId("query").value;
  if (!query.trim()) {
    if (state.live) await attempt(showChosen);
    return;
  }
  state.asked = new AbortController();
  const body = JSON.stringify({ query, record: false, describe: true });
  await attempt(async () => show(await ask("/context", { method: "POST", body, signal: state.asked.signal }), true));
}

async function attempt(what) {
  try {
    await what();
    tell("");
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
}

let typing = null;
byId("query").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(preview, TYPING_PAUSE_MS);
});
byId("try").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  preview();
});
byId("context").addEventListener("change", (event) => {
  if (event.target.name !== "order") return;
  state.order = event.target.value;
  render();
  byId("context").querySelector(`input[value="${state.order}"]`).focus();
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#request=")) attempt(showChosen);
});
keepFresh(refresh);
