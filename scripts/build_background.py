"""Embed what "nothing fits" is told by with the packaged models: general requests, and tools.

    python scripts/build_background.py

To be run again when ``general_requests.txt`` beside it (one request a line), the tools of ``encoder/data`` or
a packaged model changes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.retrieval.scoring import BACKGROUND, TOOLS_UNIT

sys.path.insert(0, str(Path(__file__).parent.parent / "encoder"))

import pairs

REQUESTS = Path(__file__).with_name("general_requests.txt")

EACH = 4
"""Of so many tools one is taken: with all of them not more is refused."""

if __name__ == "__main__":
    requests = REQUESTS.read_text(encoding="utf-8").splitlines()
    tools = [one.among_others for one in pairs.read_tools().values() if one.split == "train"][::EACH]
    for name in PACKAGED_MODELS:
        model = load_model(settings=EmbeddingConfig(model=name))
        np.save(BACKGROUND / f"{name}.npy", model.embed(requests).astype(np.float16), allow_pickle=False)
        of_tools = np.rint(TOOLS_UNIT * model.embed(tools)).astype(np.int8)
        np.save(BACKGROUND / f"{name}.tools.npy", of_tools, allow_pickle=False)
