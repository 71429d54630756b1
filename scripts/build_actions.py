"""Learn from the written requests which action serves an order with a certain opening word.

    python scripts/build_actions.py

Writes ``mcp_context_proxy/retrieval/actions.txt``. The right tool of each training request is compared with
all tools of its server: a conditional logit, with a weight for each pair of a word and an action, kept small
by a ridge. So a word counts for what it says about the action, and not for the subjects it comes with. Takes
a minute.

The file that is there was learned from fewer requests, but for what "get" says of deleting: docs/decisions.md
has what today's would change.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import numpy as np

from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.item_metadata import ACTIONS, UNIT, VERBS, WEIGHTS, action_of
from mcp_context_proxy.retrieval.needs import opening
from mcp_context_proxy.retrieval.queries import read_query
from mcp_context_proxy.retrieval.text import stem

sys.path.insert(0, str(Path(__file__).parent.parent / "encoder"))

import pairs

SCALE = 0.02
"""Score for one unit of log-odds."""

FEWEST_REQUESTS, FEWEST_SERVERS = 8, 5
"""Requests that must have a word, and servers they must be about, for it to be learned."""

RIDGE = 2.0
PRIOR = 2.0
"""Log-odds that a verb of tools asks for the action of these, before any request is seen."""

STEPS, RATE = 220, 0.05

NO_WORDS = WordList([])
"""Words to correct others to: these requests are spelled as they are meant."""

HEAD = """\
# Points for the action of a tool, by the word with which an order opens.
# Written by scripts/build_actions.py; one point is 0.0001 of a score.
"""


def main() -> None:
    """Write the file."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    single = [one for one in pairs.of_split("train", requests, tools) if not one.needs_all]
    by_server = collections.Counter(
        (key[0], action_of(key[1])) for key, one in tools.items() if one.split == "train"
    )
    actions = len(ACTIONS)
    openings = [opening(first_need(one.text)) for one in single]
    servers = collections.defaultdict(set)
    for word, one in zip(openings, single, strict=True):
        servers[word].add(one.right[0][0])
    count = collections.Counter(openings)
    frequent = {word for word in count if word and count[word] >= FEWEST_REQUESTS}
    words = sorted(word for word in frequent if len(servers[word]) >= FEWEST_SERVERS)
    column = {word: at for at, word in enumerate(words)}
    has = np.zeros((len(single), len(words)), np.float32)
    right, offered = (np.zeros((len(single), actions), np.float32) for _ in range(2))
    for at, (word, one) in enumerate(zip(openings, single, strict=True)):
        if word in column:
            has[at, column[word]] = 1
        for _, name in one.right:
            right[at, action_of(name)] += 1
        for server in {server for server, _ in one.right}:
            offered[at] += [by_server[server, action] for action in range(actions)]
    tells = (offered > 0).sum(axis=1) > 1
    prior = np.zeros((len(words), actions), np.float32)
    for verb, action in VERBS.items():
        if (word := stem(verb)) in column:
            prior[column[word], ACTIONS.index(action)] = PRIOR
    learned = fit(has[tells], right[tells], offered[tells], prior)
    points = np.rint(learned * SCALE / UNIT).astype(int)
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(words, points, strict=True)]
    columns = f"# word {' '.join(['none', *ACTIONS[1:]])}\n"
    WEIGHTS.write_text(HEAD + columns + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(words)} words from {int(tells.sum()):,} requests")


def first_need(request: str) -> str:
    """Return the first need of a request as a search reads it: "get rid of" says nothing about "get"."""
    read = read_query(request, lambda _term: True, lambda: NO_WORDS, {})
    return next(iter(read.texts[1:] or read.texts), "")


def fit(has: np.ndarray, right: np.ndarray, offered: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Maximise the likelihood of the right tools among those offered (Adam, all requests in each step)."""
    weights = prior.copy()
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        scores = has @ weights
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = [odds * counts / (odds * counts).sum(axis=1, keepdims=True) for counts in (right, offered)]
        gradient = has.T @ (expected[0] - expected[1]) - RIDGE * (weights - prior)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.99**step)) + 1e-6)
        weights += RATE * (1 - step / STEPS) * change
    return weights


if __name__ == "__main__":
    main()
