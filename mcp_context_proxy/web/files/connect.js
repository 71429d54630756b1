// The page that connects hosts: the command for each, and the hosts that are connected now.

import { ask, byId, keepFresh, open, takeToken } from "./api.js";
import { button, counted, element, keepList } from "./view.js";

const HOSTS = [
  "Claude Desktop", "Claude Code", "Cursor", "VS Code", "Windsurf", "Codex", "Gemini CLI", "Qwen Code", "Zed", "opencode",
  "Cline", "Goose", "LM Studio", "Continue", "Copilot CLI", "Copilot in JetBrains IDEs", "Kiro", "Antigravity", "Amp",
  "Crush", "Droid", "Kilo Code", "Roo Code", "Warp",
];
const NAMES = { "VS Code": "vscode", "Copilot in JetBrains IDEs": "jetbrains" };

takeToken();
byId("url").textContent = new URL("../mcp", import.meta.url).href;
byId("hosts").append(...HOSTS.map((title) => commandFor(NAMES[title] ?? title.toLowerCase().replaceAll(" ", "-"), title)));

function commandFor(name, title) {
  const command = `mcp-context-proxy install ${name}`;
  const copy = button("Copy", `Copy the command for ${title}`, async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
    } catch {
      // Without a secure context a browser lets nobody copy: the text is selected instead.
      getSelection().selectAllChildren(copy.parentElement.querySelector("code"));
    }
  });
  return element("li", { class: "card", "data-name": name }, element("h3", {}, title), element("p", { class: "actions" }, element("code", {}, command), " ", copy));
}

async function refresh() {
  const status = await statusOrNone();
  open();
  if (status === null) return;
  if (!byId("connected")) {
    byId("connect").append(element("h2", {}, "Connected now"), element("p", { id: "told" }), element("ul", { id: "connected", class: "cards" }));
  }
  byId("told").textContent = status.shared
    ? `${counted(status.hosts.length, "host")} on this proxy. Its configuration is ${status.config ?? "in memory"}.`
    : `This proxy belongs to one host, or serves over HTTP. Its configuration is ${status.config ?? "in memory"}.`;
  keepList(byId("connected"), status.hosts, (one) => `${one.pid} ${one.since}`, (one) => hostView(one));
}

/** The state of the proxy; null for those who may not see it, and need the address here all the more. */
async function statusOrNone() {
  try {
    return await ask("/status");
  } catch (error) {
    if (error.status !== 403) throw error;
    return null;
  }
}

function hostView(one) {
  const facts = [one.folder, one.pid ? `process ${one.pid}` : null, `since ${new Date(one.since * 1000).toLocaleTimeString()}`];
  return element(
    "li",
    { class: "card" },
    element("h3", {}, `${one.name || "A host"} ${one.version}`.trim()),
    element("p", { class: "facts" }, facts.filter((fact) => fact).join(" \u00b7 ")),
  );
}

keepFresh(refresh);
