// The page of approvals: what servers have changed, what waits for a person, and the buttons to decide.

import { ask, byId, keepFresh, open, takeToken, tell } from "./api.js";
import { element } from "./view.js";

let shown = "";

takeToken();

async function refresh() {
  const answer = await ask("/approvals");
  open();
  // What has not changed stays as it is: a button must not become another one under a hand.
  const facts = JSON.stringify(answer);
  if (facts === shown) return;
  shown = facts;
  byId("approvals").replaceChildren(...approvalsView(answer.definitions));
}

function approvalsView(definitions) {
  const waiting = definitions.filter((one) => one.waits);
  const others = definitions.filter((one) => !one.waits);
  return [
    element("h2", {}, "Waiting for you"),
    ...(waiting.length ? waiting.map(definitionView) : [element("p", {}, "Nothing waits for approval.")]),
    element("h2", {}, "Changed lately"),
    ...(others.length ? others.map(definitionView) : [element("p", {}, "Nothing has changed in the last 30 days.")]),
  ];
}

function definitionView(one) {
  const version = one.version ? ` \u00b7 ${one.version}` : "";
  const section = element(
    "section",
    { class: "definition" },
    element("h3", {}, `${one.server}: ${one.kind} ${one.name}`),
    element("p", { class: "facts" }, `${one.standing}${version}`),
    element("ul", { class: "differences" }, ...one.differences.map((line) => element("li", {}, line))),
  );
  const whole = `Longer than what is shown; to read it and approve: mcp-context-proxy changes ${one.server} --whole`;
  if (one.waits && !one.hash) section.append(element("p", {}, whole));
  else if (one.waits) section.append(button("Approve", one, "approve", { names: [one.name], hash: one.hash }));
  if (one.state !== "rejected") section.append(" ", button("Reject", one, "reject", { names: [one.name] }));
  return section;
}

function button(text, one, verb, body) {
  const made = element("button", { type: "button" }, text);
  made.setAttribute("aria-label", `${text} ${one.kind} ${one.name} of ${one.server}`);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      const path = `/approvals/${encodeURIComponent(one.server)}/${verb}`;
      await ask(path, { method: "POST", body: JSON.stringify(body) });
      shown = "";
    } catch (error) {
      tell(error.message);
    }
    made.disabled = false;
    look();
  });
  return made;
}

const look = keepFresh(refresh);
