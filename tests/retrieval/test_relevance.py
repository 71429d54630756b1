"""Relevance: a query fits by comparison with general requests, and near misses are still named."""

from __future__ import annotations

import numpy as np
import pytest
from support.general_requests import GENERAL_REQUESTS

from mcp_context_proxy.embedding import CachedEmbedder, LazyModel
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.retrieval import Engine, Filters
from mcp_context_proxy.retrieval.scoring import (
    CERTAIN_DEVIATIONS,
    FEWEST_ITEMS,
    evidence,
    needed_evidence,
    packaged_background,
)
from mcp_context_proxy.store import open_store


@pytest.fixture(scope="module")
def engine():
    with open_store("memory") as store:
        yield Engine(CachedEmbedder(LazyModel(), store.vectors), calibration=packaged_background())


@pytest.fixture(scope="module")
def five(tool, snapshot):
    return snapshot(
        tool("create_issue", "Open a new ticket in a repository."),
        tool("list_pull_requests", "List open pull requests of a repository."),
        tool("merge_pull_request", "Merge a pull request."),
        tool("get_file_contents", "Read a file of a repository."),
        tool("search_code", "Find code in repositories."),
    )


def test_the_packaged_background_vectors_belong_to_the_packaged_model():
    anew = load_model().embed(GENERAL_REQUESTS)

    assert packaged_background().shape == anew.shape
    # int8 arithmetic differs a little between processors.
    assert (packaged_background() * anew).sum(axis=1).min() > 0.99


def test_evidence_is_the_margin_of_the_cosine_or_the_coverage_of_the_words():
    background = np.array([[1, 0], [0, 1]], np.float32)
    query = np.array([0.6, 0.8], np.float32)
    two_deviations = 2 / CERTAIN_DEVIATIONS

    assert evidence(0.9, query, background, 0.0) == pytest.approx(two_deviations, abs=1e-3)
    assert evidence(0.9, query, background, 0.5) == pytest.approx(0.5 + two_deviations / 2, abs=1e-3)
    assert evidence(0.9, query, background, 1.0) == 1
    assert evidence(0.2, query, background, 0.25) == pytest.approx(0.25)


def test_a_larger_catalog_needs_more_evidence_and_a_tiny_one_no_less_than_a_small_one():
    sizes = [FEWEST_ITEMS, 100, 1_000, 100_000]

    assert sorted({needed_evidence(size) for size in sizes}) == [needed_evidence(size) for size in sizes]
    assert needed_evidence(1) == needed_evidence(FEWEST_ITEMS) > 0
    assert needed_evidence(100_000) < 1


@pytest.mark.parametrize(
    "query",
    [
        "please open a ticket about the crash we saw yesterday",
        "which pull requests are waiting for me?",
        "show me what is in the file setup.py",
        "create_issue",
        "pull request",
    ],
)
def test_queries_that_five_tools_can_serve_fit(engine, five, query):
    ranking = engine.search(query, five)

    assert ranking.fits
    assert ranking.results
    assert ranking.near_misses == ()


@pytest.mark.parametrize(
    "query",
    [
        "Will it rain in Lisbon tomorrow?",
        "I'd like to book a table for four on Friday evening, somewhere with a terrace.",
        "recommend a red wine for grilled lamb",
        "What is the exchange rate of the Swiss franc?",
        "turn off the lights in the kitchen",
    ],
)
def test_queries_that_five_tools_cannot_serve_fit_nothing_and_name_the_nearest(engine, five, query):
    ranking = engine.search(query, five)

    assert not ranking.fits
    assert ranking.results == ()
    assert ranking.evidence is not None
    assert ranking.evidence < needed_evidence(5)
    assert {result.item.server for result in ranking.near_misses} == {"srv"}


def test_relevance_is_judged_after_filtering(engine, tool, snapshot):
    both = snapshot(
        tool("get_weather", "Weather forecast for a city.", server="weather"),
        tool("create_issue", "Open a new ticket in a repository.", server="code"),
        tool("merge", "Merge a pull request.", server="code"),
    )
    query = "Will it rain in Lisbon tomorrow? I want the weather forecast."

    assert engine.search(query, both).fits
    assert not engine.search(query, both, Filters(servers=frozenset({"code"}))).fits


def test_a_configured_cosine_replaces_the_relevance_model(tool, snapshot, word_vectors):
    catalog = snapshot(tool("send_mail", "Sends a mail."), tool("read_file", "Reads a file."))
    query = "quagga okapi mail"

    assert Engine(word_vectors(), calibration=0.1).search(query, catalog).fits
    assert not Engine(word_vectors(), calibration=0.99).search(query, catalog).fits
    assert Engine(word_vectors(), calibration="anything").search("quagga okapi", catalog).fits
