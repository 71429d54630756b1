"""Embed what "nothing fits" is told by with the packaged models: general requests, and what is elsewhere.

    python scripts/build_background.py

To be run again when one of the lists beside it changes (``general_requests.txt``, ``everyday_tools.txt`` and
``small_talk.txt``, one text a line), the tools of ``encoder/data``, or a packaged model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.retrieval.scoring import BACKGROUND, ELSEWHERE_UNIT

sys.path.insert(0, str(Path(__file__).parent.parent / "encoder"))

import pairs

LISTS = Path(__file__).parent

EACH = 4
"""Of so many tools one is taken: with all of them not more is refused."""


def lines(name: str) -> list[str]:
    """Lines of one of the lists."""
    return (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    tools = [one.among_others for one in pairs.read_tools().values() if one.split == "train"][::EACH]
    # As texts of tools begin: a name without underscores, then what it does.
    everyday = [line.replace("_", " ") for line in lines("everyday_tools")]
    for name in PACKAGED_MODELS:
        model = load_model(settings=EmbeddingConfig(model=name))
        requests = model.embed(lines("general_requests")).astype(np.float16)
        np.save(BACKGROUND / f"{name}.npy", requests, allow_pickle=False)
        elsewhere = np.rint(ELSEWHERE_UNIT * model.embed([*tools, *everyday, *lines("small_talk")]))
        np.save(BACKGROUND / f"{name}.elsewhere.npy", elsewhere.astype(np.int8), allow_pickle=False)
