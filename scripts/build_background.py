"""Embed the general requests that "nothing fits" is told by, with the packaged model.

    python scripts/build_background.py

To be run again when `mcp_context_proxy/retrieval/relevance.py` or the packaged model changes.
"""

from __future__ import annotations

import numpy as np

from mcp_context_proxy.embedding.model import load_model
from mcp_context_proxy.retrieval.relevance import BACKGROUND, VECTORS

if __name__ == "__main__":
    np.save(VECTORS, load_model().embed(BACKGROUND).astype(np.float16), allow_pickle=False)
