"""Training of the encoder on written requests; one run, one seed.

    python encoder/train.py BASE OUT [--steps 500] [--seed 0] [--start FOLDER]

BASE is a folder with the published model.safetensors and tokenizer.json, OUT gets the trained weights. A
batch has 64 tools, at most four of a server, each with up to two requests. The loss asks for the tool of a
request among the batch's tools and their siblings (tools of the same server that differ in the verb), and
for the request of a tool among the batch's requests; what also serves a request, and near twins of other
servers, do not count as wrong. A second term keeps the vectors near those of the base model, so that what was
not written about stays as it is. Word embeddings do not move.

In most batches the scores of the words (BM25F, as the search adds them) are part of the logits, so that the
model learns what words do not tell: a request whose words already say which tool is meant teaches it little.
See Gao et al., "Complement lexical retrieval model with semantic residual embeddings" (ECIR 2021).

Rules and references come into each batch as well, with requests that mean them. Such a request has to find
its document among the others; it may need a tool, too, so tools say nothing about it. A document has to be
nearer to it than to all other requests, those for tools and those that only speak of the same things among
them.

One thread each: several seeds at once are faster than several threads for one. Layers are computed in
bfloat16, which is a quarter faster where the processor knows it, weights and losses in float32.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from minilm import WIDTH, Texts, load, save, vectors
from pairs import (
    Document,
    Request,
    catalog,
    of_split,
    read_documents,
    read_requests,
    read_tools,
)
from torch import Tensor
from torch.nn import functional

from mcp_context_proxy.items import Tool, ToolKey
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.queries import read_query
from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR
from mcp_context_proxy.retrieval.text import content_words, identifier_words

SCALE = 20.0
"""Factor of cosines before the softmax."""
TOOLS_A_BATCH, TOOLS_OF_A_SERVER, REQUESTS_OF_A_TOOL = 64, 4, 2
SIBLINGS_A_BATCH = 32
DOCUMENTS_A_BATCH, REQUESTS_OF_A_DOCUMENT = 12, 2
SIBLINGS_OF_A_TOOL = 5
"""Nearest siblings that are considered as wrong answers."""
TWIN = 0.8
"""Cosine of the base model from which tools of different servers may do the same work."""
SERVER_WEIGHT = 0.7
"""Servers are drawn by their number of requests to this power: large ones often, but not always."""
QUERY_TOKENS, TOOL_TOKENS, DOCUMENT_TOKENS = 48, 80, 112
SHOWN_WRONGLY = 0.1
"""Share of the dev requests for tools that may be as near to a document as one that is meant."""
WARM_UP = 20
"""Steps until the full learning rate."""
AMONG_OTHERS = 0.6
"""Share of tools that are rendered as in a catalog of several servers."""
WITH_WORDS = 0.7
"""Share of the batches whose logits have the scores of the words, too."""
DOCUMENT_WEIGHT = 0.4
"""Weight of the loss of documents beside that of tools."""
LOWER, TYPO, CONTENT_ONLY, POLITE = 0.3, 0.08, 0.2, 0.08
"""Shares of requests in lower case, with a typing mistake, without stop words as the product embeds them
beside the whole, and with a polite beginning."""
BEGINNINGS = ("please ", "can you ", "could you ", "I want to ", "I need to ", "help me ", "how do I ")


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a run that are swept on the dev servers."""

    steps: int
    rate: float
    frozen: int
    """Layers that do not move, from below."""
    distillation: float
    seed: int
    last_rate: float
    """Share of the learning rate at the last step; it falls in a line."""


class Trainer:
    """Tools, requests and both models of one run."""

    def __init__(self, base: Path, start: Path, settings: Settings, cache: Path) -> None:
        """Read the data and compute the base model's vectors of it."""
        self.settings, self.random = settings, random.Random(settings.seed)
        torch.manual_seed(settings.seed)
        self.tools = read_tools()
        requests, _ = read_requests(self.tools)
        self.requests = of_split("train", requests, self.tools)
        self.dev = [one for one in of_split("dev", requests, self.tools) if not one.needs_all]
        self.query_texts, self.tool_texts = Texts(base, QUERY_TOKENS), Texts(base, TOOL_TOKENS)
        self.document_texts = Texts(base, DOCUMENT_TOKENS)
        written = read_documents()
        self.documents = [one for one in written if one.split == "train"]
        self.dev_documents = [one for one in written if one.split == "dev"]
        self.model = load(start)
        self.base = BaseVectors(base, cache)
        documents = list(self.tools.values())
        self.base.add(
            "tools", [text for one in documents for text in (one.alone, one.among_others)], self.tool_texts
        )
        self.base.add(
            "documents", [text for one in self.documents for text in one.chunks], self.document_texts
        )
        plain = [one.text for one in self.requests]
        plain += [text for one in self.documents for text in (*one.meant, *one.beside)]
        self.base.add("requests", [*plain, *filter(None, map(content_words, plain))], self.query_texts)
        self.words = WordScores({key for key, tool in self.tools.items() if tool.split == "train"})
        self.dev_keys = [key for key, tool in self.tools.items() if tool.split == "dev"]
        self.dev_words = WordScores(set(self.dev_keys)).of([one.text for one in self.dev], self.dev_keys)
        self.by_server: dict[str, dict[ToolKey, list[Request]]] = collections.defaultdict(dict)
        for one in self.requests:
            for key in one.right:
                self.by_server[key[0]].setdefault(key, []).append(one)
        self.servers = list(self.by_server)
        sizes = (sum(map(len, tools.values())) for tools in self.by_server.values())
        self.weights = [size**SERVER_WEIGHT for size in sizes]
        self.siblings = siblings(documents, self.base)

    def batch(self) -> Batch:
        """Draw tools, their requests, and siblings."""
        chosen: dict[ToolKey, None] = {}
        requests: list[tuple[Request, ToolKey]] = []
        while len(chosen) < TOOLS_A_BATCH:
            (server,) = self.random.choices(self.servers, self.weights)
            own = self.by_server[server]
            for key in self.random.sample(list(own), min(TOOLS_OF_A_SERVER, len(own))):
                taken = sum(one[0] == server for one in chosen)
                if key in chosen or taken >= TOOLS_OF_A_SERVER or len(chosen) >= TOOLS_A_BATCH:
                    continue
                chosen[key] = None
                drawn = self.random.sample(own[key], min(REQUESTS_OF_A_TOOL, len(own[key])))
                requests += [(one, key) for one in drawn]
        near = [key for one in chosen for key in self.siblings.get(one, ())]
        further = [key for key in dict.fromkeys(near) if key not in chosen]
        keys = [*chosen, *self.random.sample(further, min(SIBLINGS_A_BATCH, len(further)))]
        among = self.random.random() < AMONG_OTHERS
        return Batch(requests, keys, among, self.documents_of_batch())

    def documents_of_batch(self) -> list[tuple[str, str | None, int]]:
        """Draw documents: requests with the chunk that each means, if any, and the number of its document."""
        found: list[tuple[str, str | None, int]] = []
        drawn = self.random.sample(range(len(self.documents)), min(DOCUMENTS_A_BATCH, len(self.documents)))
        for at in drawn:
            one = self.documents[at]
            chunks = self.base.of(one.chunks)
            for text in self.random.sample(one.meant, min(REQUESTS_OF_A_DOCUMENT, len(one.meant))):
                # The base model tells which chunk of a long document the request means.
                nearest = int((chunks @ self.base.of([text])[0]).argmax())
                found.append((text, one.chunks[nearest], at))
            if one.beside:
                found.append((self.random.choice(one.beside), None, at))
        return found

    def loss(self, batch: Batch) -> Tensor:
        """Both directions of the contrast, and the distance from the base model."""
        place = {key: at for at, key in enumerate(batch.keys)}
        said, before = zip(*(self.said(one.text) for one, _ in batch.requests), strict=True)
        rendered = [self.rendered(key, batch.among_others) for key in batch.keys]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            query = vectors(self.model, [self.query_texts.ids(text) for text in said])
            tool = vectors(self.model, [self.tool_texts.ids(text) for text in rendered])
        target = torch.tensor([place[key] for _, key in batch.requests])
        cosine = query @ tool.T
        if self.random.random() < WITH_WORDS:
            cosine = cosine + self.words.of([one.text for one, _ in batch.requests], batch.keys)
        logits = SCALE * cosine
        also_right = torch.zeros(logits.shape, dtype=torch.bool)
        for row, (one, key) in enumerate(batch.requests):
            for other in one.right:
                if other != key and other in place:
                    also_right[row, place[other]] = True
        # Of a catalog's near twins none is wrong: the server's name alone tells them apart.
        base_tool = self.base.of([self.tools[key].alone for key in batch.keys])
        foreign = torch.tensor([[a[0] != b[0] for b in batch.keys] for a in batch.keys])
        also_right |= ((base_tool @ base_tool.T > TWIN) & foreign)[target]
        logits = logits.masked_fill(also_right, -1e4)
        forth = functional.cross_entropy(logits, target)
        back = logits[:, target].T
        same_tool = (target[:, None] == target[None]) & ~torch.eye(len(target), dtype=torch.bool)
        back = functional.cross_entropy(back.masked_fill(same_tool, -1e4), torch.arange(len(target)))
        kept = (1 - (query * self.base.of(before)).sum(1)).mean()
        kept = kept + (1 - (tool * self.base.of(rendered)).sum(1)).mean()
        of_documents = self.loss_of_documents(batch.documents, query) if batch.documents else 0
        return (forth + back) / 2 + self.settings.distillation * kept + DOCUMENT_WEIGHT * of_documents

    def loss_of_documents(self, drawn: Sequence[tuple[str, str | None, int]], for_tools: Tensor) -> Tensor:
        """Both directions of the contrast for documents, and their distance from the base model.

        Args:
            drawn: As `documents_of_batch` gives it.
            for_tools: Vectors of the batch's requests for tools: none of them means a document.
        """
        said, before = zip(*(self.said(text) for text, _, _ in drawn), strict=True)
        chunks = list(dict.fromkeys(chunk for _, chunk, _ in drawn if chunk is not None))
        owner = {chunk: at for _, chunk, at in drawn if chunk is not None}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            query = vectors(self.model, [self.query_texts.ids(text) for text in said])
            document = vectors(self.model, [self.document_texts.ids(text) for text in chunks])
        meant = torch.tensor([row for row, (_, chunk, _) in enumerate(drawn) if chunk is not None])
        target = torch.tensor([chunks.index(chunk) for _, chunk, _ in drawn if chunk is not None])
        # Neither another chunk of the same document nor another request for it is wrong.
        own = torch.tensor(
            [[at == owner[chunk] for chunk in chunks] for _, meant_one, at in drawn if meant_one]
        )
        other = own.clone()
        other[torch.arange(len(target)), target] = False
        logits = SCALE * query[meant] @ document.T
        forth = functional.cross_entropy(logits.masked_fill(other, -1e4), target)
        every = SCALE * document[target] @ torch.cat([query, for_tools]).T
        mine = torch.zeros(every.shape, dtype=torch.bool)
        mine[:, meant] = own[:, target].T
        mine[torch.arange(len(target)), meant] = False
        back = functional.cross_entropy(every.masked_fill(mine, -1e4), meant)
        kept = (1 - (query * self.base.of(before)).sum(1)).mean()
        kept = kept + (1 - (document * self.base.of(chunks)).sum(1)).mean()
        return (forth + back) / 2 + self.settings.distillation * kept

    def said(self, text: str) -> tuple[str, str]:
        """A request with noise, and the one whose vector it should stay near."""
        chance, draw = self.random.random, self.random
        if chance() < CONTENT_ONLY and (words := content_words(text)):
            text = words
        noisy = text
        if chance() < POLITE and noisy[:1].islower():
            noisy = draw.choice(BEGINNINGS) + noisy
        if chance() < LOWER:
            noisy = noisy.lower()
        if chance() < TYPO and len(noisy) > 8:
            at = draw.randrange(1, len(noisy) - 2)
            swapped = noisy[:at] + noisy[at + 1] + noisy[at] + noisy[at + 2 :]
            noisy = draw.choice((swapped, noisy[:at] + noisy[at + 1 :], noisy[:at] + noisy[at] + noisy[at:]))
        return noisy, text

    def rendered(self, key: ToolKey, among_others: bool) -> str:
        """A tool's text as the product embeds it."""
        return self.tools[key].among_others if among_others else self.tools[key].alone

    def dev_recall(self) -> dict[str, float]:
        """Shares of the dev requests whose tool or document is found, by cosine alone but for one of them.

        ``documents told`` is the share of requests that mean a document whose document is nearer than any is
        to nine of ten requests for tools.
        """
        keys = self.dev_keys
        self.model.eval()
        with torch.no_grad():
            tool = vectors(self.model, [self.tool_texts.ids(self.tools[key].among_others) for key in keys])
            query = vectors(self.model, [self.query_texts.ids(one.text) for one in self.dev])
            texts = [text for one in self.dev_documents for text in one.meant]
            meant = [at for at, one in enumerate(self.dev_documents) for _ in one.meant]
            asked = vectors(self.model, [self.query_texts.ids(text) for text in texts])
            chunk = [text for one in self.dev_documents for text in one.chunks]
            document = vectors(self.model, [self.document_texts.ids(text) for text in chunk])
        self.model.train()
        best = (query @ tool.T).argsort(dim=1, descending=True)[:, :5].tolist()
        ranked = [[keys[at] for at in row] for row in best]
        pairs = list(zip(self.dev, ranked, strict=True))
        found = {
            f"R@{depth}": round(
                float(np.mean([bool(set(one.right) & set(row[:depth])) for one, row in pairs])), 4
            )
            for depth in (1, 5)
        }
        first_with_words = (query @ tool.T + self.dev_words).argmax(1).tolist()
        found["with words R@1"] = round(
            float(
                np.mean([keys[at] in one.right for at, one in zip(first_with_words, self.dev, strict=True)])
            ),
            4,
        )
        ends = np.cumsum([len(one.chunks) for one in self.dev_documents])
        first = [np.maximum.reduceat(row.numpy(), [0, *ends[:-1]]) for row in asked @ document.T]
        right = [one[at] for one, at in zip(first, meant, strict=True)]
        found["documents R@1"] = round(
            float(np.mean([one.argmax() == at for one, at in zip(first, meant, strict=True)])), 4
        )
        nearest = (query @ document.T).max(1).values.numpy()
        limit = float(np.quantile(nearest, 1 - SHOWN_WRONGLY))
        found["documents told"] = round(float(np.mean([one > limit for one in right])), 4)
        return found

    def run(self, out: Path, look_every: int) -> None:
        """Train, print how it goes, and write the weights."""
        settings = self.settings
        self.model.freeze(settings.frozen)
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=settings.rate, weight_decay=0.01)
        print(
            len(self.requests),
            "requests,",
            len(self.servers),
            "servers; dev before",
            self.dev_recall(),
            flush=True,
        )
        started, smooth = time.monotonic(), 0.0
        self.model.train()
        for step in range(1, settings.steps + 1):
            share = 1 - (1 - settings.last_rate) * step / settings.steps
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * min(1, step / WARM_UP) * share
            loss = self.loss(self.batch())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
            if step % 10 == 0 or step == 1:
                print(step, round(smooth, 3), f"{time.monotonic() - started:.0f} s", flush=True)
            if step % look_every == 0 or step == settings.steps:
                print(step, "dev", self.dev_recall(), flush=True)
                save(self.model, out)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests, each with the tool that it was drawn for, and all tools; the later ones are siblings only."""

    requests: Sequence[tuple[Request, ToolKey]]
    keys: Sequence[ToolKey]
    among_others: bool
    documents: Sequence[tuple[str, str | None, int]]
    """As `Trainer.documents_of_batch` gives it."""


class BaseVectors:
    """Vectors by the base model, kept in a folder: they are the same in every run."""

    def __init__(self, base: Path, cache: Path) -> None:
        self._base, self._cache = base, cache
        self._rows: dict[str, int] = {}
        self._matrix = torch.empty(0, WIDTH)

    def add(self, name: str, texts: Sequence[str], cut: Texts) -> None:
        """Read the vectors of texts, and compute those that were not computed before."""
        stored = self._cache / f"{name}.json", self._cache / f"{name}.npy"
        known: list[str] = json.loads(stored[0].read_text("utf-8")) if stored[0].exists() else []
        parts = [torch.from_numpy(np.load(stored[1]))] if known else []
        missing = list(dict.fromkeys(texts).keys() - set(known))
        if missing:
            print("computing the base model's vectors of", len(missing), name, flush=True)
            model = load(self._base).eval()
            with torch.no_grad():
                for at in range(0, len(missing), 512):
                    parts.append(vectors(model, [cut.ids(text) for text in missing[at : at + 512]]))
            known += missing
            self._cache.mkdir(parents=True, exist_ok=True)
            np.save(stored[1], torch.cat(parts).numpy())
            stored[0].write_text(json.dumps(known), "utf-8")
        self._rows |= {text: len(self._matrix) + at for at, text in enumerate(known)}
        self._matrix = torch.cat([self._matrix, *parts])

    def of(self, texts: Sequence[str]) -> Tensor:
        """Vectors of texts that were added."""
        return self._matrix[[self._rows[text] for text in texts]]


class WordScores:
    """Scores of the words of requests, as the search adds them to cosines, each computed once."""

    def __init__(self, keys: Set[ToolKey]) -> None:
        """Index the words of tools."""
        snapshot = catalog(keys)
        self._index = Engine(None).index(snapshot)
        self._place = {tool.key: at for at, tool in enumerate(self._index.items) if isinstance(tool, Tool)}
        self._known: dict[str, Tensor] = {}

    def of(self, texts: Sequence[str], keys: Sequence[ToolKey]) -> Tensor:
        """Scores of tools for requests, [requests, tools]."""
        return torch.stack([self._all(text) for text in texts])[:, [self._place[key] for key in keys]].float()

    def _all(self, text: str) -> Tensor:
        if text not in self._known:
            read = read_query(text, self._index.lexical.has, self._index.words, {})
            scores = LEXICAL_FACTOR * self._index.lexical.score(read.weights).scores
            self._known[text] = torch.from_numpy(scores).half()
        return self._known[text]


def siblings(documents: Sequence[Document], base: BaseVectors) -> dict[ToolKey, list[ToolKey]]:
    """For each tool, those of its server with the most words of the name in common and a near description."""
    by_server = collections.defaultdict(list)
    for one in documents:
        by_server[one.key[0]].append(one)
    found = {}
    for own in by_server.values():
        vector = base.of([one.alone for one in own])
        cosine = (vector @ vector.T).tolist()
        words = [set(identifier_words(one.key[1]).split()) for one in own]
        for row, one in enumerate(own):
            likeness = {
                other.key: cosine[row][at] + len(words[row] & words[at]) / len(words[row] | words[at])
                for at, other in enumerate(own)
                if at != row
            }
            found[one.key] = sorted(likeness, key=lambda key: -likeness[key])[:SIBLINGS_OF_A_TOOL]
    return found


def main() -> None:
    """Train one seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, help="weights to go on from; default: BASE")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--frozen", type=int, default=0)
    parser.add_argument("--distillation", type=float, default=2.0)
    parser.add_argument("--last-rate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--look-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="default: beside OUT")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = Settings(
        arguments.steps,
        arguments.rate,
        arguments.frozen,
        arguments.distillation,
        arguments.seed,
        arguments.last_rate,
    )
    cache = arguments.cache or arguments.out.parent / "base-vectors"
    trainer = Trainer(arguments.base, arguments.start or arguments.base, settings, cache)
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = {name: getattr(settings, name) for name in Settings.__slots__}
    (arguments.out / "settings.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    trainer.run(arguments.out, arguments.look_every)


if __name__ == "__main__":
    main()
