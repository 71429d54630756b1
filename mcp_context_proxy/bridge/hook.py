"""The prompt hook of a host: gives the user's own words to the proxy that runs, and its facts to the model.

A host runs it at each prompt, and waits for it. It never fails and never blocks a prompt: whatever goes
wrong, it prints nothing and exits with 0. It starts neither a proxy nor a server.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from mcp_context_proxy.bridge.asking import AskError, ask, configuration_file, connected, sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final

SECONDS: Final = 2.0
"""Time limit for everything together."""

INPUT_BYTES: Final = 4 * 1024 * 1024
"""Most that is read of what a host says."""

PROMPT_CHARACTERS: Final = 20_000
"""Length to which a prompt is cut; a search reads less."""

EVENTS: Final = {"claude-code": "UserPromptSubmit", "codex": "UserPromptSubmit", "gemini-cli": "BeforeAgent"}
"""Event of each host whose answer has the form that Claude Code has begun with."""

CURSOR: Final = "cursor"


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer the hook of a host, whose name is the first argument; always return 0."""
    try:
        if sys.platform == "win32":
            import threading  # noqa: PLC0415 - signals take less time

            late = threading.Timer(SECONDS, os._exit, [0])
            late.daemon = True
            late.start()
        else:
            signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
        host, *rest = arguments
        given = json.loads(sys.stdin.buffer.read(INPUT_BYTES))
        text = _facts(host, given, _config(rest), environ)
        if text:
            sys.stdout.write(json.dumps(answer(host, text)))
            sys.stdout.flush()
    except BaseException:
        # boundary: a hook that fails costs a person the prompt, in some hosts
        return 0
    return 0


def answer(host: str, text: str) -> dict[str, Any]:
    """Return facts in the form in which a host takes them."""
    if host == CURSOR:
        return {"continue": True, "additional_context": text}
    event = EVENTS.get(host, "UserPromptSubmit")
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def _config(arguments: Sequence[str]) -> str | None:
    return arguments[1] if arguments[:1] == ["--config"] and len(arguments) > 1 else None


def _facts(host: str, given: Any, config: str | None, environ: Mapping[str, str]) -> str:
    prompt = given.get("prompt") if isinstance(given, dict) else None
    # What begins with a slash is a command of the host.
    if not isinstance(prompt, str) or not prompt.strip() or prompt.lstrip().startswith("/"):
        return ""
    places = sockets(configuration_file(config, environ), environ)
    if len(places) > 1:
        # Those of proxies that were killed do not count.
        places = [place for place in places if connected(place, keep=False) is not None]
    wanted = {
        "prompt": prompt[:PROMPT_CHARACTERS],
        "host": host,
        "session": _text(given.get("session_id") or given.get("conversation_id")),
        "folder": _text(given.get("cwd")) or _first(given.get("workspace_roots")),
        "connected": len(places) > 1,
    }
    for place in places:
        try:
            found = ask(place, "POST", "/prompt", wanted, seconds=SECONDS / len(places))
        except AskError:
            continue  # such as one that is stopped: another may have the session
        if found["request"] is not None:
            return str(found["text"])
    return ""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _first(values: Any) -> str | None:
    return _text(values[0]) if isinstance(values, list) and values else None
