"""Runs the official conformance suite and the Inspector against the proxy.

``python tests/conformance/run.py FOLDER [gates] [skills] [tasks] [clients] [inspector]``; FOLDER keeps what
is installed. Where the machine cannot run the suite it says so, and that nothing was proved.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from install import NotPossibleError, Tools, install
from processes import everything_server, proxy, write_config

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.servers import Workshop, tool
from support.skills import entry, manifest_file, write

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
SCENARIO_MS = "20000"
CLIENT_MS = "60000"
"""A proxy is started for each client scenario."""
RUN_SECONDS = 600

_FAILED = re.compile(r"^✗ (\S+): \d", re.MULTILINE)
_NOT_SCORED = re.compile(r"^  ✗ (\S+) \(", re.MULTILINE)
_TOTAL = re.compile(r"^Total: (.*)$", re.MULTILINE)
_PASSED = re.compile(r"^Passed: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Gate:
    """One run of the server scenarios: how the host speaks, how the server behind is spoken to."""

    name: str
    revision: str
    downstream: str
    failing: tuple[str, ...] = ()
    """Scenarios that fail because the everything server does not ask anything in the other era."""


GATES = (
    Gate("handshake over handshake", HANDSHAKE, "handshake"),
    Gate("modern over modern", MODERN, "auto"),
    Gate(
        "handshake over modern",
        HANDSHAKE,
        "auto",
        (
            "tools-call-sampling",
            "tools-call-elicitation",
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
        ),
    ),
    Gate(
        "modern over handshake",
        MODERN,
        "handshake",
        (
            "server-stateless",
            "input-required-result-basic-elicitation",
            "input-required-result-basic-sampling",
            "input-required-result-basic-list-roots",
            "input-required-result-request-state",
            "input-required-result-multiple-input-requests",
            "input-required-result-multi-round",
            "input-required-result-non-tool-request",
            "input-required-result-result-type",
            "input-required-result-tampered-state",
            "input-required-result-capability-check",
        ),
    ),
)

CLIENT_SCENARIOS = {
    HANDSHAKE: (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ),
    MODERN: (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}
"""All that are required but ``auth/*``: those are about signing in, which is not the proxy's on this side."""

SKILL_SCENARIOS = ("sep-2640-skills-enumeration", "sep-2640-skills-manifest", "sep-2640-skills-directory")
"""Scenarios of the extension ``io.modelcontextprotocol/skills``, which no revision requires."""

TASK_SCENARIOS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-mrtr-composition",
)
"""Scenarios of the extension ``io.modelcontextprotocol/tasks``. Of the other two, one asks for nothing, and
one for a refusal of clients without tasks, in whose place the proxy takes them."""

EXAMPLES = {
    name: {"command": sys.executable, "args": ["-m", "mcp_context_proxy.examples", name]}
    for name in ("clock", "notes", "calculator")
}
QUERY = "io.github.mcp-context-proxy/query=how much is the monthly rate of a loan"
WANTED = "calculator__loan_payment"


def gates(tools: Tools) -> Iterator[str]:
    """Run the server scenarios in each pair of eras; yields the failures."""
    for gate in GATES:
        with (
            everything_server(tools.everything_server) as everything,
            proxy({"everything": {"url": everything, "era": gate.downstream}}) as url,
        ):
            options = ["--requirements", gate.revision, "--timeout", SCENARIO_MS]
            done = _suite(tools, ["server", "--url", url, *options])
        # The suite's own list of expected failures would count warnings as failures.
        failing = set(_FAILED.findall(done.stdout)) - set(_NOT_SCORED.findall(done.stdout))
        total = "".join(_TOTAL.findall(done.stdout))
        good = bool(total) and failing == set(gate.failing)
        print(f"{'ok' if good else 'FAILED'}  {gate.name}: {total}, {len(failing)} scenarios as expected")
        if not good:
            other = ", ".join(sorted(failing ^ set(gate.failing)))
            yield f"{gate.name}: other than expected: {other}\n{done.stdout[-6000:]}"


def skills(tools: Tools) -> Iterator[str]:
    """Run the scenarios of skills, which look at whatever is served: a server's skill and the user's own."""
    root, files = "skill://acme/refunds", {"SKILL.md": manifest_file("refunds", "Teaches refunds")}
    files |= {"references/guide.md": "Refund within 30 days.\n", "scripts/check.py": "print(1)\n"}
    for downstream in ("handshake", "modern"):
        with tempfile.TemporaryDirectory() as folder:
            workshop = Workshop(Path(folder))
            served = {f"{root}/{path}": text for path, text in files.items()}
            listed = [entry(root, files)]
            workshop.server("shop", era=downstream, tools=[tool("buy")], skills=listed, files=served)
            write(Path(folder) / "own/deploy", {**files, "SKILL.md": manifest_file("deploy", "Deploys it")})
            settings = workshop.servers["shop"].settings
            with proxy({"shop": settings}, documents=Path(folder) / "own") as url:
                for scenario in SKILL_SCENARIOS:
                    name = f"{scenario}, a {downstream} server behind"
                    yield from _scenario(tools, name, scenario, url)


def tasks(tools: Tools) -> Iterator[str]:
    """Run the scenarios of tasks."""
    program = str(Path(__file__).with_name("task_server.py"))
    with proxy({"tasks": {"command": sys.executable, "args": [program]}}) as url:
        for scenario in TASK_SCENARIOS:
            yield from _scenario(tools, scenario, scenario, url, "--spec-version", MODERN, "--force")


def _scenario(tools: Tools, name: str, scenario: str, url: str, *options: str) -> Iterator[str]:
    done = _suite(tools, ["server", "--url", url, "--scenario", scenario, *options])
    passed = "".join(_PASSED.findall(done.stdout + done.stderr))
    good = done.returncode == 0 and bool(passed)
    print(f"{'ok' if good else 'FAILED'}  {name}: {passed}")
    if not good:
        yield f"{name}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


def clients(tools: Tools) -> Iterator[str]:
    """Run the client scenarios with the proxy between the client and the suite's server."""
    program = Path(__file__).with_name("through_proxy.py")
    command = f"{sys.executable} {program} {tools.sdk_client}"
    for revision, scenarios in CLIENT_SCENARIOS.items():
        for scenario in scenarios:
            name = f"client {scenario}, {revision}"
            options = ["--command", command, "--scenario", scenario, "--spec-version", revision]
            done = _suite(tools, ["client", *options, "--timeout", CLIENT_MS])
            passed = "".join(_PASSED.findall(done.stdout + done.stderr))
            print(f"{'ok' if done.returncode == 0 else 'FAILED'}  {name}: {passed}")
            if done.returncode != 0:
                yield f"{name}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


def _suite(tools: Tools, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tools.suite, *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


def inspector(tools: Tools) -> Iterator[str]:
    """Ask as an independent client does, in both eras, over stdio and HTTP."""
    hidden = {"list_all_below": 0}
    config = write_config(tools.folder / "config.toml", EXAMPLES, hidden)
    # The Inspector takes --config for its own.
    program = tools.folder / "proxy.sh"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcp_context_proxy --config "{config}" serve\n')
    program.chmod(0o755)
    with proxy(EXAMPLES, hidden) as url:
        for era in ("legacy", "modern"):
            http = [url, "--transport", "http", "--protocol-era", era]
            yield from _listing(tools, f"Inspector, HTTP, {era}", http)
        # A host on standard streams starts the proxy anew each time; ad-hoc targets are spoken to as legacy.
        yield from _call(tools, "Inspector, stdio", [str(program), "--transport", "stdio"])
        yield from _call(tools, "Inspector, HTTP, modern", http)


def _listing(tools: Tools, name: str, target: list[str]) -> Iterator[str]:
    plain = _inspect(tools, [*target, "--method", "tools/list"])
    filtered = _inspect(tools, [*target, "--metadata", QUERY, "--method", "tools/list"])
    names = [[entry["name"] for entry in listed.get("tools", [])] for listed in (plain, filtered)]
    good = "search_available_tools" in names[0] and WANTED not in names[0] and WANTED in names[1]
    print(f"{'ok' if good else 'FAILED'}  {name}: {len(names[0])} tools, {len(names[1])} with a query")
    if not good:
        yield f"{name}: listed {names[0]}, and with a query {names[1]}"


def _call(tools: Tools, name: str, target: list[str]) -> Iterator[str]:
    arguments = ["--tool-name", "call_tool", "--tool-arg", f"name={WANTED}"]
    loan = json.dumps({"amount": 1200, "annual_rate": 0, "years": 1})
    asked = ["--method", "tools/call", *arguments, "--tool-arg", f"arguments={loan}"]
    result = _inspect(tools, [*target, *asked])
    good = "100" in json.dumps(result) and not result.get("isError")
    print(f"{'ok' if good else 'FAILED'}  {name}: a call through call_tool")
    if not good:
        yield f"{name}: a call gave {result}"


def _inspect(tools: Tools, arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [*tools.inspector, *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return {"isError": True, "stdout": done.stdout[-1000:], "stderr": done.stderr[-1000:]}
    result = found.get("result") if isinstance(found, dict) else None
    return result if isinstance(result, dict) else {"isError": True, "found": found}


PARTS = {"gates": gates, "skills": skills, "tasks": tasks, "clients": clients, "inspector": inspector}


def main() -> int:
    folder, *wanted = sys.argv[1:]
    try:
        tools = install(Path(folder).resolve())
    except NotPossibleError as error:
        print(f"SKIPPED: the conformance suite was not run, so nothing is proved by it: {error}")
        return 0
    failures = [failure for part in wanted or PARTS for failure in PARTS[part](tools)]
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
