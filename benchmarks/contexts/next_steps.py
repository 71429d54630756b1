"""Fits the weights of next steps, and tries them on each family of servers without its own results.

    python -m benchmarks.contexts.next_steps

Prints `WEIGHTS` and `NO_STEP` of `mcp_context_proxy/retrieval/next_steps.py`. The data are the results that
are not held out, and the tools of `steps.txt`, each with the fields of its result, without those whose
results are held out. Each counts twice: as it is, and without the known steps whose called name is alike, as
if no such server had ever been seen. Takes two minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio
import numpy as np

from benchmarks.contexts import sets
from benchmarks.contexts.__main__ import LIKE_A_KNOWN_STEP, STORE, Without, real_tools
from mcp_context_proxy.items import Tool
from mcp_context_proxy.library import Catalog, ContextEngine
from mcp_context_proxy.retrieval.next_steps import FIRST, FURTHER, STEPS, WEIGHTS, KnownSteps, steps

RIDGE, ROUNDS, AGAIN = 0.01, 250, 60

FAMILIES = (
    "github gitlab zereight-gitlab",
    "git git-cyanheads",
    "playwright puppeteer chrome-devtools",
    "tavily firecrawl brave-search fetch aws-docs context7",
    "atlassian linear",
    "mongodb sqlite",
    "excel word",
    "notion memory filesystem",
    "slack hubspot salesforce",
)
"""Servers that are left out together, because they do the same."""


@dataclass(frozen=True)
class Choice:
    """Columns of the tools that compete after a result, and those that fit."""

    family: str
    needs: tuple[sets.Need, ...]
    tools: list[tuple[str, str]]
    columns: np.ndarray
    from_a_result: bool

    @property
    def fits(self) -> np.ndarray:
        """Whether each tool fits."""
        return np.array([any(key in need for need in self.needs) for key in self.tools], bool)


def family_of(server: str) -> str:
    return next((one for one in FAMILIES if server in one.split()), server)


def choices(engine: ContextEngine, known: KnownSteps, from_a_result: Iterable[bool]) -> list[Choice]:
    expander = engine._selector._expander._expander
    index = engine._searcher._engine.index_of(engine._catalog.snapshot)
    by_key = {one.key: one for one in index.items if isinstance(one, Tool)}
    recorded = [(one, True) for file in sets.RESULTS for one in sets.results(file)]
    unseen = {one.tool for one, _ in recorded if one.held_out}
    entries = [*recorded, *((one, False) for one in sets.steps() if one.tool not in unseen)]
    found = []
    for one, is_result in entries:
        if is_result not in from_a_result or (is_result and one.held_out):
            continue
        tools, columns = steps(index, expander._vectors, known, by_key[one.tool], one.text)
        if tools:
            family = family_of(one.tool[0])
            found.append(Choice(family, one.needs, [tool.key for tool in tools], columns, is_result))
    return found


def fitted(of: Sequence[Choice], start: np.ndarray | None = None) -> np.ndarray:
    """Return the weights and, last, that of a tool beside no next step: a choice among the tools and none."""
    rows = np.concatenate([one.columns for one in of])
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    rows = (rows - mean) / scale
    sizes = np.array([len(one.tools) for one in of])
    starts, group = np.concatenate([[0], np.cumsum(sizes)[:-1]]), np.repeat(np.arange(len(of)), sizes)
    fits = np.concatenate([one.fits for one in of])
    any_fits = np.add.reduceat(fits.astype(int), starts) > 0
    weights = np.append(np.zeros(rows.shape[1]), -4.0)
    if start is not None:
        weights = np.append(start[:-1] * scale, start[-1] + mean @ start[:-1])
    first, second = np.zeros(len(weights)), np.zeros(len(weights))
    for at in range(1, (ROUNDS if start is None else AGAIN) + 1):
        likely = np.exp(rows @ weights[:-1] + weights[-1])
        share = likely / (np.add.reduceat(likely, starts) + 1)[group]
        right = np.add.reduceat(likely * fits, starts)[group]
        wanted = np.where(any_fits[group], likely * fits / np.maximum(right, 1e-12), 0)
        gain = wanted - share
        slope = np.append(rows.T @ gain / len(of) - RIDGE * weights[:-1], gain.sum() / len(of))
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        rate = 0.05 if start is None and at <= 150 else 0.02
        weights = weights + rate * first / (1 - 0.9**at) / (np.sqrt(second / (1 - 0.99**at)) + 1e-8)
    own = weights[:-1] / scale
    return np.append(own, weights[-1] - mean @ own)


def tried(of: Sequence[Choice], weights: dict[str, np.ndarray]) -> str:
    """Return recall and precision with the weights of each family."""
    needs = met = brought = right = 0
    for one in of:
        own = weights[one.family]
        likely = np.exp(one.columns @ own[:-1] + own[-1])
        share = likely / (likely.sum() + 1)
        order = np.argsort(-share, kind="stable")[:STEPS]
        chosen = [at for rank, at in enumerate(order) if share[at] >= (FURTHER if rank else FIRST)]
        keys = {one.tools[at] for at in chosen}
        needs, met = needs + len(one.needs), met + sum(bool(need & keys) for need in one.needs)
        brought, right = brought + len(chosen), right + int(one.fits[chosen].sum())
    return f"recall {met / needs:.3f} ({met}/{needs}), precision {right / brought:.3f} ({right}/{brought})"


async def main() -> None:
    tools = [one for own in real_tools().values() for one in own]
    with ContextEngine(Catalog(tools), store=STORE) as engine:
        await engine.build("list issues", remember=False)
        expander = engine._selector._expander._expander
        ways = {
            "with all known steps": KnownSteps(expander._embed_parts),
            "without known steps that are alike": Without(expander._embed_parts, LIKE_A_KNOWN_STEP),
        }
        own = {title: choices(engine, known, (True, False)) for title, known in ways.items()}
    every = [one for found in own.values() for one in found]
    weights = fitted(every)
    families = {one.family for one in every}
    without = {family: fitted([one for one in every if one.family != family], weights) for family in families}
    for title, found in own.items():
        print(f"{title}, each family by the others: {tried([o for o in found if o.from_a_result], without)}")
    print(json.dumps(dict(zip(WEIGHTS, np.round(weights, 2).tolist(), strict=False)), indent=4))
    print("no step", round(float(weights[-1]), 2))


if __name__ == "__main__":
    anyio.run(main)
