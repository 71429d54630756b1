"""Makes reference.npz and tool_vectors.npz: the vectors of the official float32 model for two lists of texts.

reference_texts.json holds texts of every kind, odd ones above all; tool_texts.json the first chunk of 100
tools, evenly taken from the lists in tests/data/tools.

    pip install torch transformers
    python tests/embedding/data/make_reference.py FOLDER_WITH_THE_PUBLISHED_MODEL

Made with torch 2.13.0 and transformers 5.23.0 from the weights that PROVENANCE.md in the package names:
BertTokenizer from vocab.txt, truncated at 256 word pieces, mean over the tokens, L2 norm, one text at a time.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import BertModel, BertTokenizer

HERE = Path(__file__).parent


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = BertTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    for texts, vectors in (("reference_texts", "reference"), ("tool_texts", "tool_vectors")):
        listed = json.loads((HERE / f"{texts}.json").read_text(encoding="utf-8"))
        embedded = np.stack([embed(model, tokenizer, text) for text in listed])
        np.savez_compressed(HERE / f"{vectors}.npz", vectors=embedded)


def embed(model: BertModel, tokenizer: BertTokenizer, text: str) -> np.ndarray:
    tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        states = model(**tokens).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()


if __name__ == "__main__":
    main()
