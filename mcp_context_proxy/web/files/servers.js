// The first page: every server with its state, and the buttons to restart it and to turn it on and off.

import { act, ask, byId, failed, keepFresh, open, takeToken, tell } from "./api.js";
import { button, counted, duration, element, focusAgain, keepList, megabytes, number } from "./view.js";

const LINES = 40;

takeToken();
// Requests were on this page once, and their addresses may be kept somewhere.
if (location.hash.startsWith("#request=")) location.replace(`${new URL("requests", import.meta.url)}${location.hash}`);

async function refresh() {
  const [status, known] = await Promise.all([ask("/status"), ask("/servers")]);
  open();
  const more = new Map(known.servers.map((one) => [one.name, one]));
  const servers = status.servers.map((one) => ({ ...more.get(one.name), ...one, memory: one.memory && megabytes(one.memory) }));
  // First those that need somebody; the others in the order of the configuration.
  servers.sort((a, b) => Number(tone(b) === "bad") - Number(tone(a) === "bad"));
  summarize(status, servers);
  // The cards say what is wrong with a server.
  const others = status.problems.filter((text) => !servers.some((one) => text.startsWith(`server ${one.name}: `)));
  byId("problems").replaceChildren(...others.map((text) => element("p", { class: "notice" }, text)));
  keepList(byId("servers"), servers, (one) => one.name, card);
  byId("none").hidden = servers.length > 0;
}

function summarize(status, servers) {
  const wrong = servers.filter((one) => tone(one) === "bad").length;
  const tools = servers.reduce((sum, one) => sum + one.tools, 0);
  const told = [
    counted(servers.length, "server"),
    wrong ? `${wrong} of them ${wrong === 1 ? "needs" : "need"} you` : null,
    counted(tools, "tool"),
    status.shared ? `${counted(status.hosts.length, "host")} connected` : null,
    `running for ${duration(status.uptime)}`,
    status.memory === null ? null : megabytes(status.memory),
    `version ${status.version}`,
  ];
  byId("summary").textContent = told.filter((one) => one !== null).join(" \u00b7 ");
}

const isDisabled = (one) => one.state === "disabled" || (one.state === "off" && one.cause.startsWith("turned off"));

function tone(one) {
  if (isDisabled(one)) return "quiet";
  if (one.state === "ready") return "good";
  return one.state === "off" || one.cause ? "bad" : "waiting";
}

function card(one) {
  const off = isDisabled(one);
  const serves = !off && one.state !== "off";
  return element(
    "li",
    { class: "card", "data-name": one.name },
    element(
      "div",
      { class: "head" },
      element("h2", {}, one.name),
      element("span", { class: `state ${tone(one)}` }, off ? "turned off" : one.state),
    ),
    element("p", { class: "facts" }, facts(one).join(" \u00b7 ")),
    one.cause && !off ? element("p", { class: "notice" }, one.cause) : null,
    ...(one.findings ?? []).map((text) => element("p", { class: "facts" }, text)),
    one.address ? element("p", { class: "address" }, element("code", {}, one.address)) : null,
    serves ? lastWords(one) : null,
    element(
      "p",
      { class: "actions" },
      serves ? button("Restart", `Restart ${one.name}`, () => restart(one.name)) : null,
      serves ? button("Turn off", `Turn off ${one.name}`, () => turn(one.name, false), `turn ${one.name}`) : null,
      off ? button("Turn on", `Turn on ${one.name}`, () => turn(one.name, true), `turn ${one.name}`) : null,
      one.tools ? element("a", { href: `ui/tools#server=${encodeURIComponent(one.name)}` }, `Its ${counted(one.tools, "tool")}`) : null,
    ),
  );
}

function facts(one) {
  const told = [];
  if (one.server_name) told.push(`${one.server_name} ${one.server_version ?? ""}`.trim());
  told.push(one.calls ? `${counted(one.calls, "call")}, ${one.errors ? `${number(one.errors)} failed` : "none failed"}` : "not called yet");
  if (one.turned_off) told.push(`${counted(one.turned_off, "tool")} turned off`);
  if (one.withheld) told.push(`${counted(one.withheld, "tool")} withheld`);
  if (one.failures) told.push(counted(one.failures, "failed attempt"));
  if (one.next_retry) told.push(`next attempt at ${new Date(one.next_retry * 1000).toLocaleTimeString()}`);
  if (one.memory) told.push(one.memory);
  return told;
}

/** The last lines of a server; they are asked for when somebody wants to see them. */
function lastWords(one) {
  const lines = element("pre", { tabindex: "0", "aria-label": `Last lines of ${one.name}` });
  const details = element("details", { "data-name": "lines" }, element("summary", {}, "Last lines"), lines);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const log = await ask(`/logs?server=${encodeURIComponent(one.name)}&limit=${LINES}`);
      const text = log.lines.map((line) => `${new Date(line.time * 1000).toLocaleTimeString()}  ${line.text}`);
      lines.textContent = text.join("\n") || "It has written nothing to standard error.";
    } catch (error) {
      lines.textContent = error.message;
    }
  });
  return details;
}

const path = (name, verb) => `/servers/${encodeURIComponent(name)}/${verb}`;

async function restart(name) {
  tell(`Restarting ${name}`);
  try {
    const { done } = await act(path(name, "restart"));
    byId("done").replaceChildren(element("p", { class: "done" }, done));
    tell("");
  } catch (error) {
    failed(error);
  }
  look();
}

/** Turn a server on or off, and offer the way back. */
async function turn(name, on) {
  tell(`Turning ${on ? "on" : "off"} ${name}`);
  try {
    const { note, file } = await act(path(name, on ? "enable" : "disable"));
    const said = `${name} is turned ${on ? "on" : "off"} in ${file}. ${note ?? ""}`;
    byId("done").replaceChildren(
      element("p", { class: "done" }, said, " ", button("Undo", `Undo: turn ${on ? "off" : "on"} ${name}`, () => turn(name, !on))),
    );
    tell("");
  } catch (error) {
    failed(error);
  }
  await look();
  focusAgain(`turn ${name}`);
}

const look = keepFresh(refresh);
