"""Expectations of the proxy in each fault mode, as data: one row for each mode and transport."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Outcome(Enum):
    """The outcome of a call of the faulty tool."""

    ANSWERS = auto()
    """The result that the server meant."""
    FAILS = auto()
    """A result marked ``isError`` that names the server and says why."""
    REFUSES = auto()
    """The server's own JSON-RPC error."""
    RELAYS = auto()
    """Whatever result the server sent, however odd."""


ANSWERS, FAILS, REFUSES, RELAYS = Outcome

DEADLINE = {"call_timeout": 0.4}
"""For modes that never answer: how long their calls are waited for."""

QUICK = {"connect_timeout": 1.5}


@dataclass(frozen=True, slots=True)
class Case:
    """One mode."""

    mode: str
    outcome: Outcome = ANSWERS
    says: str = ""
    """Pattern of the error's text, or of the result for `RELAYS`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the faulty server."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the faulty server in the configuration."""
    lists: bool = True
    """True if its tools are ever listed."""
    lives: bool = True
    """True if its tool ``safe`` works afterwards, at once or after a restart."""
    era: str | None = None
    """Era of the server, if it is not that of the client; the proxy finds ``auto`` out."""


def _never(mode: str, says: str, **more: Any) -> Case:
    return Case(mode, FAILS, says, lists=False, lives=False, **more)


UNTIMELY = r"did not answer .* within 0\.4 s"
MAYBE = "may or may not have run"
WITHHELD_OR_ANSWERED = r'is withheld: its definition changed|[0-9a-f]{32}"'
"""A changed tool is withheld from the moment on at which the proxy has seen the change."""
CRASHED = (
    rf"not available \(((still starting|starting again; before that|failed|disconnected).*exited \(code 7\))"
    rf"|exited \(code 7\) during tool 'tool_000'; it {MAYBE}"
)

STDIO = [
    Case("normal"),
    _never("exit-at-start", r"exited \(code 3\).*no licence"),
    Case("slow-start", options={"delay": 0.5}),
    Case("banner"),
    Case("flood-stderr", options={"size": 4 << 20}),
    Case("stderr-no-newline", options={"size": 4 << 20}),
    Case("crash-loop", FAILS, CRASHED, options={"delay": 1.0}, lives=False),
    Case("orphan"),
    Case("ignore-sigterm"),
    Case("ignore-eof"),
    Case("slow-exit", options={"delay": 0.2}),
    Case("memory-hog", options={"size": 32 << 20}),
    _never("hang-initialize", "starting|was not ready within|did not answer initialize", settings=QUICK),
    Case("hang-discover", era="auto"),
    Case("die-on-discover", era="auto"),
    Case("slow-initialize", options={"delay": 0.5}),
    _never("die-during-initialize", r"exited \(code 4\)"),
    _never("error-initialize", "the licence has expired"),
    _never("bad-version", "1901-01-01"),
    _never("bad-initialize", "failed|protocolVersion|speaks"),
    Case("flap-list", options={"delay": 3.0, "rate": 200}),
    Case("flood-stdout", options={"size": 16 << 20}),
    _never("endless-line", "'s-endless-line'", options={"size": 32 << 20}, settings=QUICK | DEADLINE),
    Case("close-stdout", FAILS, f"closed its output .*{MAYBE}"),
    Case("ping-client"),
    Case("rug-pull-silent", RELAYS, WITHHELD_OR_ANSWERED),
    Case("rug-pull", RELAYS, WITHHELD_OR_ANSWERED),
    Case("poison"),
    Case("hostile-unicode"),
    Case("giant-description"),
    Case("bad-names"),
    Case("duplicate-names"),
    Case("bad-tools"),
    Case("deep-schema"),
    Case("schema-bomb"),
    Case("output-bomb-schema"),
    Case("flapping-tools"),
    Case("slow-list", options={"delay": 0.5}),
    _never("hang-list", "starting|was not ready within", settings=QUICK),
    _never("error-list", "the database is down"),
    _never("die-mid-list", r"exited \(code 5\)"),
    Case("endless-pages"),
    Case("same-cursor"),
    Case("die-mid-call", FAILS, rf"exited \(code 6\) during tool 'tool_000'; it {MAYBE}"),
    Case("sigkill-mid-call", FAILS, rf"killed by signal 9, possibly out of memory .*{MAYBE}"),
    Case("die-mid-reply", FAILS, rf"exited \(code 6\) .*{MAYBE}"),
    Case("hang-call", FAILS, UNTIMELY, settings=DEADLINE),
    Case("stall-mid-reply", FAILS, UNTIMELY, settings=DEADLINE, lives=False),
    Case("stop-reading", FAILS, UNTIMELY, settings=DEADLINE, lives=False),
    Case("rpc-error", REFUSES, "the tool refuses"),
    Case("tool-error", RELAYS, "no such row"),
    Case("slow-call", options={"delay": 0.3}),
    Case("out-of-order"),
    Case("progress", options={"delay": 0.3}),
    Case("ignore-cancel", options={"delay": 0.3}),
    Case("huge-result", FAILS, r"8,388,\d+ bytes, over the limit of 4,194,304", {"size": 8 << 20}),
    Case("deep-result", FAILS, "nested deeper than 120 levels"),
    Case("output-bomb"),
    Case("hostile-result", RELAYS, r"\\u001b\[2J\\u202e.*169\.254\.169\.254"),
    Case("bad-result", RELAYS, "content"),
    Case("ask-client"),
    Case("input-required", RELAYS, "requestState|text"),
    Case("environment"),
    Case("leak-secret", REFUSES, r"cannot log in with \[redacted API_TOKEN\]"),
    Case("wrong-id", FAILS, UNTIMELY, settings=DEADLINE),
    Case("string-id"),
    Case("null-id", FAILS, UNTIMELY, settings=DEADLINE),
    Case("duplicate-reply"),
    Case("swap-ids", FAILS, UNTIMELY, settings=DEADLINE),
    Case("null-result", FAILS, "answered without a result object"),
    Case("result-and-error", REFUSES, "and yet"),
    Case("garbage"),
    Case("invalid-json", FAILS, "a message that cannot be read"),
    Case("invalid-utf8", FAILS, "a message that cannot be read"),
    Case("lone-surrogate", RELAYS, r"text.*\\ufffd"),
    Case("nan", FAILS, "a message that cannot be read"),
    Case("batch", FAILS, "a message that cannot be read"),
    Case("crlf"),
    Case("dribble", options={"delay": 0.3}),
]

BROKE_OFF = rf"{MAYBE}"
UNREADABLE = "cannot be read|did not answer|broke|may or may not"

HTTP = [
    Case("normal"),
    _never("hang-initialize", "starting|was not ready|did not answer", settings=QUICK),
    _never("die-during-initialize", "'h-die-during-initialize' is not available"),
    _never("error-initialize", "the licence has expired"),
    _never("bad-version", "1901-01-01"),
    _never("bad-initialize", "'h-bad-initialize' is not available"),
    Case("slow-initialize", options={"delay": 0.5}),
    Case("rug-pull-silent", RELAYS, WITHHELD_OR_ANSWERED),
    Case("poison"),
    Case("hostile-unicode"),
    Case("giant-description"),
    Case("bad-names"),
    Case("bad-tools"),
    Case("deep-schema"),
    Case("schema-bomb"),
    Case("flapping-tools"),
    Case("slow-list"),
    _never("hang-list", "starting|was not ready within", settings=QUICK),
    _never("error-list", "the database is down"),
    _never("die-mid-list", "'h-die-mid-list' is not available"),
    Case("endless-pages"),
    Case("same-cursor"),
    Case("die-mid-call", FAILS, BROKE_OFF),
    Case("die-mid-reply", FAILS, BROKE_OFF),
    Case("hang-call", FAILS, UNTIMELY, settings=DEADLINE),
    Case("stall-mid-reply", FAILS, UNTIMELY, settings=DEADLINE),
    Case("rpc-error", REFUSES, "the tool refuses"),
    Case("tool-error", RELAYS, "no such row"),
    Case("slow-call"),
    Case("progress"),
    Case("huge-result", FAILS, "limit|too large|exceed|broke|may or may not"),
    Case("output-bomb"),
    Case("hostile-result", RELAYS, r"\\u001b\[2J\\u202e.*169\.254\.169\.254"),
    Case("input-required", RELAYS, "requestState|text"),
    Case("wrong-id", FAILS, f"{UNTIMELY}|{MAYBE}", settings=DEADLINE),
    Case("null-id", FAILS, f"{UNTIMELY}|{MAYBE}", settings=DEADLINE),
    Case("duplicate-reply"),
    Case("null-result", FAILS, f"without a result object|{UNREADABLE}", settings=DEADLINE),
    Case("invalid-json", FAILS, UNREADABLE, settings=DEADLINE),
    # An event stream is decoded as the HTML standard says: what is no text becomes U+FFFD.
    Case("invalid-utf8", RELAYS, r"\\ufffd\(\\ufffd"),
    Case("nan", FAILS, "a message that cannot be read"),
    Case("batch", FAILS, UNREADABLE, settings=DEADLINE),
    Case("http-500", FAILS, "500"),
    Case("http-503", FAILS, "503"),
    Case("http-html", FAILS, "html|200"),
    Case("half-open", FAILS, UNTIMELY, settings=DEADLINE),
    Case("slow-headers", FAILS, UNTIMELY, settings=DEADLINE),
    Case("redirect", FAILS, "307|edirect"),
    Case("reset", FAILS, BROKE_OFF),
    Case("short-body", FAILS, BROKE_OFF),
    Case("big-event", RELAYS, "eeee"),
]
