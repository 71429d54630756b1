// Asks the API. The token comes in the fragment of the address, which no server is sent; it moves at once to
// the storage of this tab, so that it stays in no history and no bookmark.

const TOKEN = "mcp-context-proxy.token";
const LOOK_AGAIN_MS = 3000;

export const byId = (id) => document.getElementById(id);

/** Move the token out of the address. */
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (!fragment.has("token")) return;
  sessionStorage.setItem(TOKEN, fragment.get("token"));
  fragment.delete("token");
  const rest = fragment.toString();
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
}

/** The answer of the API; throws the detail of a refusal. */
export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  // An old browser does not say that its own page asks; a page of another origin cannot set this header.
  const headers = { "X-Requested-With": "fetch", ...(token && { Authorization: `Bearer ${token}` }) };
  if (options.body) headers["Content-Type"] = "application/json";
  const address = new URL(`../api/v1${path}`, import.meta.url);
  const response = await fetch(address, { ...options, headers, cache: "no-store", referrerPolicy: "no-referrer" });
  if (response.status === 401) {
    askForToken(token !== null);
    throw new Error("A token is needed.");
  }
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.detail ?? response.statusText), { status: response.status });
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

/** There is an answer, so nobody need be asked for a token. */
export function open() {
  byId("login").hidden = true;
  byId("main").hidden = false;
}

/** Tell in one line how it stands; the same line twice is told once. */
export function tell(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

/** Refresh now, again in a moment, and whenever somebody comes back or gives a token; the way to do it now. */
export function keepFresh(refresh) {
  let timer = null;
  async function look() {
    clearTimeout(timer);
    let forOthers = false;
    if (!document.hidden) {
      try {
        await refresh();
        tell("");
      } catch (error) {
        // A page for administrators stays one; the page of requests is for everybody.
        forOthers = error.status === 403;
        const next = forOthers ? "Your own requests are on the page Requests." : "Trying again.";
        tell(byId("login").hidden ? `${error.message} ${next}` : "");
      }
    }
    if (byId("login").hidden && !forOthers) timer = setTimeout(look, LOOK_AGAIN_MS);
  }
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, byId("token").value.trim());
    byId("token").value = "";
    look();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
  return look;
}

/** Have the proxy do something. */
export function act(path) {
  return ask(path, { method: "POST" });
}

/** Say why something was not done; it stays until something else is done. */
export function failed(error) {
  const told = document.createElement("p");
  told.className = "notice";
  told.textContent = `Not done: ${error.message}`;
  byId("done").replaceChildren(told);
  tell("");
}
