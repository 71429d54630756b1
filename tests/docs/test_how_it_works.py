"""docs/how-it-works.md, ranking.md and eras.md describe the code as it is."""

import re
import tomllib
from pathlib import Path

from support.tables import each

import mcp_context_proxy
from mcp_context_proxy.retrieval import FITTING, bm25, scoring, text

from .conftest import page

PACKAGE = Path(mcp_context_proxy.__file__).parent
ROOT = Path(__file__).parents[2]


PACKAGES = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
FLOWS = 6


@each("name", ["how-it-works", "ranking", "eras", "decisions"])
def test_every_file_that_the_page_names_exists(name):
    named = re.findall(r"`([\w/]+\.py|[a-z]+/)`", page(f"docs/{name}.md").text)
    assert named
    for file in named:
        assert (PACKAGE / file).exists(), file


def test_each_flow_names_the_packages_it_passes_through(how_it_works):
    _, *flows = how_it_works.text.partition("## Six flows")[2].partition("\n## ")[0].split("\n### ")

    assert len(flows) == FLOWS
    for flow in flows:
        heading, _, path, *_ = flow.splitlines()
        packages = re.findall(r"`(\w+)`", path)
        assert len(packages) > 2, heading
        assert set(packages) <= PACKAGES, heading


def test_every_folder_and_top_module_has_its_line(how_it_works):
    table = how_it_works.text.partition("## What lives where")[2]
    parts = {name + "/" for name in PACKAGES}
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}

    assert set(re.findall(r"`([\w.]+/?)`(?=[ ,].*\|)", table)) >= parts | modules


def test_the_folders_are_in_the_order_of_their_imports(how_it_works):
    table = how_it_works.text.partition("## What lives where")[2]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [layer.rpartition(".")[2] for layer in reversed(contract["layers"])]
    listed = re.findall(r"`(\w+)(?:/|\.py)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))

    assert [name for name in listed if name in layers] == layers


def test_the_formula_has_the_numbers_of_the_code(ranking):
    assert f"+ {scoring.LEXICAL_FACTOR:g} * BM25F" in ranking.text
    assert f"k1 = {bm25.K1:g}, b = {bm25.B:g}" in ranking.text
    share, step = FITTING.share_of_best, FITTING.share_step
    assert share is not None
    assert f"the second needs {share + step:g} of the best score less {FITTING.leeway:g}" in ranking.text
    assert f"one {step:g} of it more, so the fifth needs {share + 4 * step:g}" in ranking.text
    assert f"the tenth {share + 9 * step:g}" in ranking.text
    assert (FITTING.at_least, FITTING.at_most) == (1, 10)
    assert f"the {scoring.RIVALS} nearest of some 950 texts" in ranking.text
    assert f"{scoring.needed_evidence(20):.2f} among 20 items" in ranking.text
    assert f"{scoring.needed_evidence(1_000):.2f} among 1,000" in ranking.text
    assert f"the words must cover {scoring.STRONG_COVERAGE:g} of the query's idf" in ranking.text
    assert 945 <= len(scoring.packaged_background().elsewhere) <= 955
    assert 185 <= len(scoring.packaged_background().requests) <= 195
    assert 195 <= len(scoring.packaged_background().unaided) <= 205
    assert f"the five nearest general requests, less {scoring.NEARER_UNAIDED:g}" in ranking.text
    assert f"at most {text.CHUNK_LIMIT} characters" in ranking.text
    assert bm25.WEIGHTS == {
        "name": 2,
        "description": 1,
        "parameters": 1,
        "parameter_descriptions": 0.5,
        "server": 1,
        "text": 0.5,
        "title": 1,
        "values": 0.5,
        "labels": 0.5,
        "use_cases": 1,
    }
