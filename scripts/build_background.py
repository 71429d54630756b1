"""Build what "nothing fits" is told by: common terms, vectors of general requests and of what is elsewhere.

    python scripts/build_background.py

To be run again when one of the lists beside it changes (``general_requests.txt``, ``everyday_tools.txt``,
``small_talk.txt`` and ``unaided.txt``, one text a line), the tools of ``encoder/data``, or a packaged model.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.retrieval.scoring import BACKGROUND, UNIT
from mcp_context_proxy.retrieval.text import terms

sys.path.insert(0, str(Path(__file__).parent.parent / "encoder"))

import pairs

LISTS = Path(__file__).parent

EACH = 4
"""Of so many tools one is taken: with all of them not more is refused."""


def lines(name: str) -> list[str]:
    """Lines of one of the lists."""
    return (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


LEAST_SHARE = 0.004
"""Share of the tools of an ordinary server from which a term is common. Rarer ones change nothing."""


def ordinary_terms() -> Counter[str]:
    """Thousandths of the tools of an ordinary server that have each term, where they are not very few."""
    servers = dict[str, list[set[str]]]()
    for tool in pairs.read_tools().values():
        if tool.split == "train":
            servers.setdefault(tool.key[0], []).append(set(terms(tool.among_others)))
    shares = dict[str, float]()
    for own in servers.values():
        for term in (term for having in own for term in having):
            shares[term] = shares.get(term, 0.0) + 1 / len(own) / len(servers)
    return Counter({term: round(1000 * share) for term, share in shares.items() if share >= LEAST_SHARE})


if __name__ == "__main__":
    common = (
        f"{share} {term}"
        for term, share in sorted(ordinary_terms().items(), key=lambda one: (-one[1], one[0]))
    )
    (BACKGROUND / "terms.txt").write_text("\n".join([*common, ""]), encoding="utf-8")
    tools = [one.among_others for one in pairs.read_tools().values() if one.split == "train"][::EACH]
    # As texts of tools begin: a name without underscores, then what it does.
    everyday = [line.replace("_", " ") for line in lines("everyday_tools")]
    for name in PACKAGED_MODELS:
        model = load_model(settings=EmbeddingConfig(model=name))
        requests = model.embed(lines("general_requests")).astype(np.float16)
        np.save(BACKGROUND / f"{name}.npy", requests, allow_pickle=False)
        for kind, texts in {
            "elsewhere": [*tools, *everyday, *lines("small_talk")],
            "unaided": lines("unaided"),
        }.items():
            units = np.rint(UNIT * model.embed(texts)).astype(np.int8)
            np.save(BACKGROUND / f"{name}.{kind}.npy", units, allow_pickle=False)
