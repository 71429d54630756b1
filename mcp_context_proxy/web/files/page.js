// Asks the API and shows what it answers. The token comes in the fragment of the address, which no server is
// sent; it moves at once to the storage of this tab, so that it stays in no history and no bookmark.

import { contextView, requestEntry, shareOf } from "./view.js";

const TOKEN = "mcp-context-proxy.token";
const LISTED = 100;
const TYPING_PAUSE_MS = 120;
const LOOK_AGAIN_MS = 3000;

const byId = (id) => document.getElementById(id);
const state = { behind: null, shown: null, live: false, order: null, asked: null, timer: null };

takeToken();

function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (!fragment.has("token")) return;
  sessionStorage.setItem(TOKEN, fragment.get("token"));
  fragment.delete("token");
  const rest = fragment.toString();
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
}

/** The answer of the API; throws the detail of a refusal. */
async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (options.body) headers["Content-Type"] = "application/json";
  const response = await fetch(`api/v1${path}`, { ...options, headers, cache: "no-store", referrerPolicy: "no-referrer" });
  if (response.status === 401) {
    askForToken(token !== null);
    throw new Error("A token is needed.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail ?? response.statusText);
  return answer;
}

function askForToken(refused) {
  byId("main").hidden = true;
  byId("refusal").textContent = refused ? "The proxy does not take this token." : "";
  if (byId("login").hidden) {
    byId("login").hidden = false;
    byId("token").focus();
  }
}

/** Tell in one line how it stands; the same line twice is told once. */
function tell(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

/** Look for new requests, and once more in a moment. */
async function look() {
  clearTimeout(state.timer);
  if (!document.hidden) {
    try {
      await refresh();
      tell("");
    } catch (error) {
      tell(byId("login").hidden ? `${error.message} Trying again.` : "");
    }
  }
  if (byId("login").hidden) state.timer = setTimeout(look, LOOK_AGAIN_MS);
}

async function refresh() {
  const { requests, tokens_behind } = await ask(`/requests?limit=${LISTED}`);
  byId("login").hidden = true;
  byId("main").hidden = false;
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
  const order = state.order ?? (state.live ? "score" : "name");
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
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  look();
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
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
look();
