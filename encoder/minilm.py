"""Forward pass of all-MiniLM-L6-v2 in torch, with the parameters named as in its published weights.

A text gets one vector of norm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, POSITIONS, WIDTH, HIDDEN, HEADS, LAYERS = 30522, 512, 384, 1536, 12, 6
EPSILON = 1e-12
DROPOUT = 0.05
BUCKET = 24
"""Texts of similar length that are computed at once, so that little is padding."""


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})
        self.output = _Residual(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        texts, tokens, _ = x.shape
        query, key, value = (
            self.self[name](x).view(texts, tokens, HEADS, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output: Tensor = self.output(attended.transpose(1, 2).reshape(texts, tokens, WIDTH), x)
        return output


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(functional.dropout(self.dense(x), DROPOUT, self.training) + skip)
        return normed


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, HIDDEN)})
        self.output = _Residual(HIDDEN)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        widened: Tensor = functional.gelu(self.intermediate["dense"](x))
        output: Tensor = self.output(widened, x)
        return output


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: ids.shape[1]]
        normed: Tensor = self.LayerNorm(
            self.word_embeddings(ids) + positions + self.token_type_embeddings(types)
        )
        return normed


class MiniLM(nn.Module):
    """The transformer; ``layers`` of its six."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embeddings = _Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer() for _ in range(layers))})

    def forward(self, ids: Tensor, lengths: Tensor, types: Tensor | None = None) -> Tensor:
        """Mean over the tokens of each text, not normalised."""
        real = torch.arange(ids.shape[1])[None] < lengths[:, None]
        x = self.embeddings(ids, torch.zeros_like(ids) if types is None else types)
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        mask = None if bool(real.all()) else real[:, None, None]
        for layer in layers:
            x = layer(x, mask)
        mean: Tensor = (x * real[..., None]).sum(1) / lengths[:, None]
        return mean

    def freeze(self, layers: int) -> None:
        """Keep the embeddings and the lowest ``layers`` as they are."""
        self.embeddings.requires_grad_(False)
        for layer in list(self.encoder["layer"])[:layers]:
            layer.requires_grad_(False)


def load(folder: Path, layers: int = LAYERS) -> MiniLM:
    """The model in ``folder/model.safetensors``; only its lowest layers where fewer are wanted."""
    model = MiniLM(layers)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    wanted = model.state_dict()
    model.load_state_dict({name: stored[name].float() for name in wanted})
    return model


def save(model: nn.Module, folder: Path) -> None:
    """Write ``folder/model.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


class Texts:
    """Word pieces of texts, each text cut once and kept."""

    def __init__(self, folder: Path, most: int) -> None:
        """Cut every text at ``most`` word pieces, special ones included."""
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(most)
        self._tokenizer.no_padding()
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Word pieces of a text."""
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text).ids
        return self._known[text]


def vectors(model: MiniLM, ids: Sequence[list[int]]) -> Tensor:
    """One vector of norm 1 a text, in the order given; computed in buckets of similar length."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    parts = []
    for at in range(0, len(order), BUCKET):
        bucket = [ids[index] for index in order[at : at + BUCKET]]
        lengths = torch.tensor([len(one) for one in bucket])
        padded = torch.zeros(len(bucket), int(lengths.max()), dtype=torch.long)
        for row, one in enumerate(bucket):
            padded[row, : len(one)] = torch.tensor(one)
        parts.append(functional.normalize(model(padded, lengths), dim=-1))
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(parts).float()[back]
