"""Sets of documents, results and requests, as the files beside this one have them, checked and divided."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = ("results.txt", "results-later.txt", "results-third.txt")
"""The later ones were written after the first had been measured several times, and before any change."""

STEPS = HERE / "steps.txt"

QUESTIONS = HERE / "questions.txt"
SECTIONS = HERE / "sections.txt"

TEAMS = HERE / "teams.txt"
TEAMS_REQUESTS = HERE / "teams-requests.txt"

REQUESTS = ("requests.txt", "requests-later.txt")
"""The later ones, and `documents-later.txt`, were written after the others were measured, in other styles."""

FILES = sorted((*HERE.glob("documents-*.txt"), *(HERE / name for name in (*RESULTS, *REQUESTS))))

VALUES = {
    "id": "88121",
    "name": "alpha",
    "title": "Alpha",
    "url": "https://acme.example/a",
    "status": "ok",
    "state": "open",
    "key": "AB-12",
    "count": 2,
    "number": 12,
    "path": "a/b",
}
"""Values of fields in made-up results."""

Need = frozenset[tuple[str, str]]
"""Tools, by server and own name, any of which serves."""


def held_out(text: str) -> bool:
    """Whether an entry belongs to the third that was not looked at while numbers were chosen."""
    return hashlib.sha256(text.encode()).digest()[0] % 3 == 0


def digest() -> str:
    """One hash of all files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in FILES)).hexdigest()


@dataclass(frozen=True)
class Written:
    """A document with the tools that it needs and the request that finds it."""

    name: str
    kind: str
    request: str
    needs: tuple[Need, ...]
    text: str
    later: bool
    """Whether it is one of `documents-later.txt`."""

    @property
    def held_out(self) -> bool:
        """Whether it belongs to the third that was not looked at."""
        return held_out(self.name)


@dataclass(frozen=True)
class Recorded:
    """A result of a tool with the tools that fit next; none where nothing more is to be done."""

    tool: tuple[str, str]
    needs: tuple[Need, ...]
    text: str

    @property
    def held_out(self) -> bool:
        """Whether it belongs to the third that was not looked at."""
        return held_out(self.text)


def needs_of(line: str) -> tuple[Need, ...]:
    keys = ([one.split(":", 1) for one in need.split("|")] for need in line.split() if need != "none")
    return tuple(frozenset((server, name) for server, name in need) for need in keys)


def entries(path: Path) -> list[tuple[str, list[str]]]:
    """The heads and lines of a file."""
    parts = path.read_text(encoding="utf-8").split("=== ")[1:]
    return [(lines[0], lines[1:]) for lines in (part.rstrip("\n").split("\n") for part in parts)]


def documents() -> list[Written]:
    found = []
    for path in sorted(HERE.glob("documents-*.txt")):
        for head, lines in entries(path):
            name, kind = head.split(" | ")
            request, tools = lines[0].removeprefix("request: "), lines[1].removeprefix("tools:")
            text, later = "\n".join(lines[2:]).strip(), path.stem == "documents-later"
            found.append(Written(name, kind, request, needs_of(tools), text, later))
    return found


def results(file: str) -> list[Recorded]:
    """The results of one of the files in `RESULTS`."""
    found = []
    for head, lines in entries(HERE / file):
        server, name = head.split(":", 1)
        needs = needs_of(lines[0].removeprefix("next: "))
        found.append(Recorded((server, name), needs, "\n".join(lines[1:]).strip()))
    return found


def steps() -> list[Recorded]:
    """The tools of `STEPS`, each with a made-up result that has the fields named there."""
    found, server, prefix = [], "", ""
    for line in STEPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            server, _, prefix = line[3:].partition(" ")
        elif not line.startswith("#"):
            name, fields, following = (part.strip() for part in line.split("|"))
            one = {field: VALUES.get(field, "...") for field in fields.lstrip("[").split()}
            text = json.dumps([one, one] if fields.startswith("[") else one)
            keys = frozenset((server, prefix + name) for name in following.split() if name != "none")
            found.append(Recorded((server, prefix + name), (keys,) if keys else (), text))
    return found


def teams() -> list[Written]:
    """The documents of `TEAMS`, once for each request that means one; none is used to choose numbers."""
    found = []
    for head, lines in entries(TEAMS):
        name, kind = head.split(" | ")
        asked = [line.removeprefix("request: ") for line in lines if line.startswith("request: ")]
        text = "\n".join(lines[len(asked) :])
        found += [Written(name, kind, request, (), text, True) for request in asked]
    return found


def questions() -> dict[str, frozenset[str]]:
    """Questions about this project, each with the pages of its documentation that answer it."""
    lines = (line.split(" | ") for line in QUESTIONS.read_text(encoding="utf-8").splitlines())
    return {line[0]: frozenset(line[1].split()) for line in lines}


def sections() -> list[tuple[str, str, frozenset[str]]]:
    """Questions that one section of a page answers: question, page, and headings that are right."""
    lines = (line.split(" | ") for line in SECTIONS.read_text(encoding="utf-8").splitlines())
    return [(asked, page, frozenset(headings.split("; "))) for asked, page, headings in lines]


def teams_requests() -> dict[str, frozenset[str]]:
    """Requests for tools in the field of the documents of `TEAMS`; none of these is taken to apply."""
    lines = TEAMS_REQUESTS.read_text(encoding="utf-8").splitlines()
    return dict.fromkeys(lines, frozenset[str]())


def requests() -> dict[str, frozenset[str]]:
    """Requests for tools, each with the documents that speak of the same and may come as well."""
    texts = ((HERE / name).read_text(encoding="utf-8") for name in REQUESTS)
    lines = (line.split(" | ") for text in texts for line in text.splitlines())
    return {line[0]: frozenset(line[1].split() if len(line) > 1 else ()) for line in lines}
