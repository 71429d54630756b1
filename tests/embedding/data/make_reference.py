"""Makes reference.npz: what the official float32 model says about the texts in reference_texts.json.

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
    texts = json.loads((HERE / "reference_texts.json").read_text(encoding="utf-8"))
    tokenizer = BertTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    vectors = []
    with torch.inference_mode():
        for text in texts:
            tokens = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            states = model(**tokens).last_hidden_state[0]
            vectors.append(torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy())
    np.savez_compressed(HERE / "reference.npz", vectors=np.stack(vectors))


if __name__ == "__main__":
    main()
