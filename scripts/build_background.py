"""Embed the general requests that "nothing fits" is told by, with the packaged models.

    python scripts/build_background.py

To be run again when ``general_requests.txt`` beside it (one request a line) or a packaged model changes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.retrieval.scoring import BACKGROUND

REQUESTS = Path(__file__).with_name("general_requests.txt")

if __name__ == "__main__":
    requests = REQUESTS.read_text(encoding="utf-8").splitlines()
    for name in PACKAGED_MODELS:
        model = load_model(settings=EmbeddingConfig(model=name))
        np.save(BACKGROUND / f"{name}.npy", model.embed(requests).astype(np.float16), allow_pickle=False)
