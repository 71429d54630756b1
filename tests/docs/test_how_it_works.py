"""docs/how-it-works.md speaks of the code as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import mcp_context_proxy
from mcp_context_proxy.retrieval import ADAPTIVE, bm25, relevance, scoring, text
from mcp_context_proxy.retrieval.relevance import BACKGROUND

PACKAGE = Path(mcp_context_proxy.__file__).parent
ROOT = Path(__file__).parents[2]


def test_files_that_are_named_exist(how_it_works):
    for name in re.findall(r"`([\w/]+\.py|[a-z]+/)`", how_it_works.text):
        assert (PACKAGE / name).exists(), name


def test_every_folder_and_top_module_has_its_line(how_it_works):
    table = how_it_works.text.partition("## What lives where")[2]
    parts = {path.name + "/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}

    assert set(re.findall(r"`([\w.]+/?)`(?=[ ,].*\|)", table)) >= parts | modules


def test_the_folders_are_in_the_order_of_their_imports(how_it_works):
    table = how_it_works.text.partition("## What lives where")[2]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [layer.rpartition(".")[2] for layer in reversed(contract["layers"])]
    listed = re.findall(r"`(\w+)(?:/|\.py)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))

    assert [name for name in listed if name in layers] == layers


def test_the_formula_has_the_numbers_of_the_code(how_it_works):
    weights = dict(zip(bm25.FIELDS, bm25.WEIGHTS.tolist(), strict=True))

    assert f"+ {scoring.LEXICAL_FACTOR:g} * BM25F" in how_it_works.text
    assert f"k1 = {bm25.K1:g}, b = {bm25.B:g}" in how_it_works.text
    assert f"at least {ADAPTIVE.share_of_best:g} of the mean of the best three" in how_it_works.text
    assert f"{ADAPTIVE.at_least} to {ADAPTIVE.at_most} tools" in how_it_works.text
    assert ADAPTIVE.best == 3
    assert f"from {relevance.CERTAIN_DEVIATIONS:g} on is proof" in how_it_works.text
    assert f"{relevance.needed(relevance.FEWEST_ITEMS):.2f} among 20 items" in how_it_works.text
    assert f"{relevance.needed(1_000):.2f} among 1,000" in how_it_works.text
    assert f"the words cover {relevance.STRONG_COVERAGE:g} of the query's idf" in how_it_works.text
    assert 185 <= len(BACKGROUND) <= 195
    assert f"at most {text.CHUNK_LIMIT} characters" in how_it_works.text
    assert weights == {
        "name": 2,
        "description": 1,
        "parameters": 1,
        "parameter_descriptions": 0.5,
        "server": 1,
        "text": 0.5,
    }
