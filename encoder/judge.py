"""Sheets for a reader who did not write the requests, and the collection of those that such readers agree on.

    python encoder/judge.py sheets WRITTEN BATCHES JUDGE     writes JUDGE/sheets/*.txt and JUDGE/key.jsonl
    python encoder/judge.py crossed WRITTEN BATCHES JUDGE    further sheets of requests that may not fit
    python encoder/judge.py score JUDGE                      how often readers chose the tool that was meant
    python encoder/judge.py collect WRITTEN BATCHES JUDGE    writes data/requests/*.txt

A sheet shows the tools of one server and requests for them in another order than they were written, each with
a few tools of other servers that search finds near. It does not show the writer's choice. A request for
which a reader names other tools only is dropped, one for which the reader names several is served by any.
Held-out requests are all read, those of training to a tenth. Requests that nothing fits are read with the
ten tools of their batch that search finds nearest. ``crossed`` puts requests to the servers of another batch
than they were written for; where readers find that nothing there fits, they belong to that batch, too.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pairs
from pairs import REQUESTS, Document

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.evaluation import TOOLS
from mcp_context_proxy.items import Snapshot, ToolKey
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

A_SHEET = 40
"""Requests on a sheet."""
OTHERS = 3
"""Tools of other servers shown beside a request."""
NEAREST = 10
"""Tools shown beside a request that nothing fits."""
CROSSED = 13
"""Requests from elsewhere that are put to the servers of a batch."""
TRAINING_SHARE = 10
"""One request of so many is read where it is trained on."""
HELD_OUT = "W5"
DESCRIPTION = 150
"""Characters of a description on a sheet."""


@dataclass(frozen=True, slots=True)
class Written:
    """A written request; without tools where nothing fits."""

    writer: str
    batch: str
    text: str
    right: tuple[ToolKey, ...]
    needs_all: bool = False

    @property
    def id(self) -> str:
        """Identity of the request in the key and the answers."""
        return hashlib.sha256(f"{self.writer}/{self.batch}/{self.text}".encode()).hexdigest()[:12]


def read_batch(path: Path) -> list[ToolKey]:
    """Tools of a batch, in order."""
    server, found = "", []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# "):
            server = line[2:].split(": ", 1)[0]
        elif match := re.match(r"(\S[^()]*?)\(.*?\) - ", line):
            found.append((server, match[1]))
    return found


def read_written(path: Path, keys: list[ToolKey]) -> Iterator[Written]:
    """Requests of a batch; lines that fit no tool are left out, as parse.py has named them."""
    known, server = set(keys), ""
    homes = collections.defaultdict(list)
    for key in keys:
        homes[key[1]].append(key)
    for raw in path.read_text("utf-8").splitlines():
        line = raw.strip()
        head, _, rest = line.partition(": ")
        if line.startswith("# "):
            server = head[2:].strip()
        elif line.startswith("+ "):
            named = [_key(name.strip(), known, homes) for name in head[2:].split(",")]
            if rest and all(named):
                yield Written(path.parent.name, path.stem, rest.strip(), tuple(filter(None, named)), True)
        elif line.startswith("- "):
            yield Written(path.parent.name, path.stem, line[2:].strip(), ())
        elif (server, head) in known:
            for text in filter(None, map(str.strip, rest.split("|"))):
                yield Written(path.parent.name, path.stem, text, ((server, head),))


def _key(name: str, known: set[ToolKey], homes: dict[str, list[ToolKey]]) -> ToolKey | None:
    server, _, tool = name.partition("/")
    if (server, tool) in known:
        return server, tool
    return homes[name][0] if len(homes[name]) == 1 else None


def written_batches(written: Path, batches: Path) -> Iterator[tuple[list[ToolKey], list[Written]]]:
    """Each written batch with its tools."""
    for path in sorted(written.glob("*/*.txt")):
        keys = read_batch(batches / path.parent.name / path.name)
        yield keys, list(read_written(path, keys))


class Search:
    """The product's ranking over a catalog."""

    def __init__(self, keys: list[ToolKey], model: LazyModel, cache: Path) -> None:
        self._snapshot: Snapshot = pairs.catalog(keys)
        self._store = open_store(cache)
        embedder = CachedEmbedder(model, self._store.vectors)
        self._engine = Engine(embedder, calibration=packaged_background())

    def best(self, text: str, count: int) -> list[ToolKey]:
        """The best tools for a request."""
        found = self._engine.search(text, self._snapshot, TOOLS, SearchOptions(depth=count))
        results = (*(found.results or found.near_misses), *found.others)
        return [(one.item.server, one.item.name) for one in results[:count]]


def write_sheets(written: Path, batches: Path, judge: Path) -> None:
    """Write sheets of the requests that have none yet."""
    tools = pairs.read_tools()
    model, sheets, key_path = LazyModel(), judge / "sheets", judge / "key.jsonl"
    sheets.mkdir(parents=True, exist_ok=True)
    known = (
        {line["id"] for line in map(json.loads, key_path.read_text("utf-8").splitlines())}
        if key_path.exists()
        else set()
    )
    for keys, requests in written_batches(written, batches):
        name = f"{requests[0].writer}-{requests[0].batch}" if requests else ""
        fresh = [one for one in requests if one.id not in known and not one.needs_all]
        held_out = name.startswith(HELD_OUT)
        fitting = [one for one in fresh if one.right and (held_out or int(one.id, 16) % TRAINING_SHARE == 0)]
        nothing = [one for one in fresh if not one.right]
        if not fitting and not nothing:
            continue
        scope = [key for key, tool in tools.items() if tool.split != "train"] if held_out else keys
        search = Search(scope, model, judge / "vectors.db")
        # A sheet that a reader may have is never written again: later requests get further sheets.
        if earlier := len([*sheets.glob(f"{name}-*.txt")]):
            name += f"-{earlier + 1}"
        lines, entries = _fitting_sheets(name, fitting, tools, search)
        for sheet, texts in lines.items():
            (sheets / f"{sheet}.txt").write_text("\n".join(texts) + "\n", "utf-8")
        more, nothing_entries = _nothing_sheet(
            name, nothing, tools, Search(keys, model, judge / "vectors.db")
        )
        if more:
            (sheets / f"{name}-nothing.txt").write_text("\n".join(more) + "\n", "utf-8")
        with key_path.open("a", encoding="utf-8") as file:
            for entry in (*entries, *nothing_entries):
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        print(name, len(fitting), "requests,", len(nothing), "that nothing fits", flush=True)


def write_crossed_sheets(written: Path, batches: Path, judge: Path) -> None:
    """Write a sheet of requests from elsewhere for each batch that has none."""
    tools, model, key_path = pairs.read_tools(), LazyModel(), judge / "key.jsonl"
    everything = list(written_batches(written, batches))
    singles = [one for _, requests in everything for one in requests if one.right and not one.needs_all]
    for keys, requests in everything:
        name = f"{requests[0].writer}-{requests[0].batch}-crossed"
        path = judge / "sheets" / f"{name}.txt"
        if path.exists():
            continue
        own = {key[0] for key in keys}
        foreign = [one for one in singles if one.right[0][0] not in own]
        draw = random.Random(name)
        chosen = draw.sample(foreign, CROSSED)
        asked = [replace(one, writer=requests[0].writer, batch=requests[0].batch, right=()) for one in chosen]
        lines, entries = _nothing_sheet(name, asked, tools, Search(keys, model, judge / "vectors.db"))
        path.write_text("\n".join(lines) + "\n", "utf-8")
        with key_path.open("a", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(entry | {"sheet": name}, ensure_ascii=False) + "\n")
        print(name, flush=True)


def _fitting_sheets(
    name: str, fitting: list[Written], tools: dict[ToolKey, Document], search: Search
) -> tuple[dict[str, list[str]], list[dict[str, Any]]]:
    sheets: dict[str, list[str]] = collections.defaultdict(list)
    entries: list[dict[str, Any]] = []
    by_server = collections.defaultdict(list)
    for one in sorted(fitting, key=lambda one: one.id):
        by_server[one.right[0][0]].append(one)
    filled: dict[str, int] = {}
    for server, requests in by_server.items():
        siblings = [key for key in tools if key[0] == server]
        for at in range(0, len(requests), A_SHEET):
            sheet = _next_sheet(name, sheets, filled, min(A_SHEET, len(requests) - at))
            lines = sheets[sheet]
            lines += [f"== tools of {server}"]
            lines += [f"{place}. {_described(tools[key])}" for place, key in enumerate(siblings, 1)]
            lines += ["== requests"]
            for one in requests[at : at + A_SHEET]:
                others = [key for key in search.best(one.text, NEAREST) if key[0] != server][:OTHERS]
                shown = "; ".join(
                    f"{letter} {'/'.join(key)} ({_description(tools[key])[:50]})"
                    for letter, key in zip("ABC", others, strict=False)
                )
                lines.append(f"{one.id} | {one.text}" + (f"  || {shown}" if shown else ""))
                choices = {str(place): key for place, key in enumerate(siblings, 1)}
                choices |= dict(zip("ABC", others, strict=False))
                entries.append(_entry(one, sheet, choices))
    return sheets, entries


def _next_sheet(name: str, sheets: dict[str, list[str]], filled: dict[str, int], adding: int) -> str:
    last = f"{name}-{len(sheets):02d}"
    if last in sheets and filled[last] + adding <= A_SHEET * 1.25:
        filled[last] += adding
        return last
    new = f"{name}-{len(sheets) + 1:02d}"
    filled[new] = adding
    return new


def _nothing_sheet(
    name: str, nothing: list[Written], tools: dict[ToolKey, Document], search: Search
) -> tuple[list[str], list[dict[str, Any]]]:
    lines, entries = [], []
    for one in nothing:
        near = search.best(one.text, NEAREST)
        lines += [f"{one.id} | {one.text}"]
        lines += [
            f"  {place}. {'/'.join(key)}: {_description(tools[key])[:110]}"
            for place, key in enumerate(near, 1)
        ]
        entries.append(_entry(one, f"{name}-nothing", {str(place): key for place, key in enumerate(near, 1)}))
    return lines, entries


def _described(tool: Document) -> str:
    return f"{tool.key[1]}: {_description(tool)[:DESCRIPTION]}"


def _description(tool: Document) -> str:
    return re.sub(r"\s+", " ", tool.alone.split(": ", 1)[-1])


def _entry(one: Written, sheet: str, choices: dict[str, ToolKey]) -> dict[str, Any]:
    right = [place for place, key in choices.items() if key in one.right]
    return {"id": one.id, "sheet": sheet, "text": one.text, "right": right, "choices": choices}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The tools that a reader named for a request; none where nothing fits."""

    chosen: tuple[ToolKey, ...]


def read_judgements(judge: Path) -> tuple[dict[str, Judgement], dict[str, dict[str, Any]]]:
    """Judgements by request, and the key; prints answers that cannot be read."""
    key_path = judge / "key.jsonl"
    if not key_path.exists():
        return {}, {}
    key = {line["id"]: line for line in map(json.loads, key_path.read_text("utf-8").splitlines())}
    found = {}
    for path in sorted((judge / "answers").glob("*.txt")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            match = re.match(r"\s*([0-9a-f]{12})\s*[:|]\s*([0-9A-C, ]+?)\s*$", line)
            entry = key.get(match[1]) if match else None
            if match is None or entry is None:
                if line.strip() and not line.startswith("#"):
                    print(f"{path}:{number}: not read: {line[:80]}")
                continue
            places = [place for place in re.split(r"[, ]+", match[2]) if place and place != "0"]
            choices = entry["choices"]
            found[match[1]] = Judgement(tuple(tuple(choices[p]) for p in places if p in choices))
    return found, key


def score(judge: Path) -> None:
    """Print agreement by writer, and the requests that are dropped."""
    judged, key = read_judgements(judge)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for id_, judgement in judged.items():
        entry = key[id_]
        right = {tuple(entry["choices"][place]) for place in entry["right"]}
        kind = str(entry["sheet"])[:2] + (
            " nothing" if str(entry["sheet"]).endswith(("nothing", "crossed")) else ""
        )
        if not right:
            verdict = "something fits" if judgement.chosen else "agreed"
        elif not right & set(judgement.chosen):
            verdict = "other tool"
        else:
            verdict = "agreed" if len(judgement.chosen) == 1 else "among several"
        counts[kind][verdict] += 1
        if verdict in ("other tool", "something fits"):
            chosen = ", ".join("/".join(one) for one in judgement.chosen) or "none"
            print(f"{kind} dropped: {entry['text']!r}: read as {chosen}, meant {sorted(right)}")
    for kind, verdicts in sorted(counts.items()):
        total = sum(verdicts.values())
        print(kind, total, {verdict: f"{count / total:.1%}" for verdict, count in verdicts.items()})


def collect(written: Path, batches: Path, judge: Path, out: Path = REQUESTS) -> None:
    """Write the requests of all batches, without those that were read otherwise than meant."""
    judged, entries = read_judgements(judge)
    unfitting = collections.defaultdict(list)
    for id_, found in judged.items():
        sheet = str(entries[id_]["sheet"])
        if sheet.endswith("-crossed") and not found.chosen:
            unfitting[sheet.removesuffix("-crossed")].append(f"- {entries[id_]['text']}")
    by_writer: dict[str, list[str]] = collections.defaultdict(list)
    for keys, requests in written_batches(written, batches):
        kept: dict[ToolKey, list[str]] = {key: [] for key in keys}
        further: list[str] = []
        for one in requests:
            judgement = judged.get(one.id)
            if one.needs_all:
                further.append(f"+ {', '.join('/'.join(key) for key in one.right)}: {one.text}")
            elif not one.right:
                if judgement is None or not judgement.chosen:
                    further.append(f"- {one.text}")
            elif judgement is None or set(one.right) & set(judgement.chosen):
                right = dict.fromkeys([*one.right, *(judgement.chosen if judgement else ())])
                for key in right:
                    kept.setdefault(key, []).append(one.text)
        lines = [f"## {requests[0].batch}"] if requests else []
        further += unfitting[f"{requests[0].writer}-{requests[0].batch}"] if requests else []
        for server in dict.fromkeys(key[0] for key in kept):
            own = [
                (key[1], dict.fromkeys(texts)) for key, texts in kept.items() if key[0] == server and texts
            ]
            mark = "#" if any(key[0] == server for key in keys) else "#+"
            lines += [f"{mark} {server}", *(f"{name}: {' | '.join(texts)}" for name, texts in own)]
        if requests:
            by_writer[requests[0].writer] += [*lines, *dict.fromkeys(further), ""]
    out.mkdir(parents=True, exist_ok=True)
    for writer, lines in by_writer.items():
        path = out / f"writer-{writer.removeprefix('W')}.txt"
        path.write_text("\n".join(lines), "utf-8")
        print(
            path,
            sum(line.count(" | ") + 1 for line in lines if ": " in line and line[0] not in "#+-"),
            "requests",
        )


def main() -> None:
    """Run one of the three steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    for step in ("sheets", "crossed", "collect"):
        one = steps.add_parser(step)
        for name in ("written", "batches", "judge"):
            one.add_argument(name, type=Path)
    steps.add_parser("score").add_argument("judge", type=Path)
    arguments = parser.parse_args()
    if arguments.step == "score":
        score(arguments.judge)
    else:
        run = {"sheets": write_sheets, "crossed": write_crossed_sheets, "collect": collect}[arguments.step]
        run(arguments.written, arguments.batches, arguments.judge)


if __name__ == "__main__":
    main()
