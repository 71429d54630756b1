"""The whole proxy with another embedding model: behind an endpoint that may fail, or in a folder."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.embeddings import Asked, Service, embedding_service
from support.model_folders import write_export
from support.proxies import Host, command, inside
from support.servers import Workshop, tool
from support.wires import stdio

from mcp_context_proxy.config import load
from mcp_context_proxy.embedding.embeddings import (
    RETRY_SECONDS,
    CachedEmbedder,
    LazyModel,
    QueryEmbedder,
    open_model,
)
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.store.opening import open_store

KEY = "sk-very-secret-key"
QUERY = "forecast of the weather"
TOOLS = [
    tool("weather_forecast", "weather forecast"),
    *(tool(f"other_{n}", f"thing number {n}") for n in range(8)),
]


@pytest.fixture
def service() -> Iterator[Service]:
    with embedding_service() as running:
        yield running


@pytest.fixture
def config(workshop: Workshop, service: Service) -> Path:
    workshop.server("s", tools=TOOLS)
    return configured(workshop, service)


def configured(
    workshop: Workshop, service: Service, limits: dict[str, Any] | None = None, **more: Any
) -> Path:
    table = {"model": "embedder", "endpoint": service.url, "api_key": KEY, **more}
    patient = {"embedding_query_seconds": 30.0, "embedding_seconds": 30.0}
    return workshop.config(embedding=table, limits={**patient, **(limits or {})})


async def found(config: Path, query: str = QUERY) -> dict[str, Any]:
    async with inside(config) as proxy:
        answer = await Host(proxy, "modern").data("search_available_tools", {"query": query})
    return dict(answer)


def refusing(asked: Asked) -> None:
    asked.answer(401, {"error": {"message": f"unknown key {KEY}"}})


async def test_search_uses_the_vectors_of_the_endpoint(config: Path, service: Service) -> None:
    data = await found(config, "Wetter Vorhersage")

    assert data["method"] == "hybrid"
    assert data["results"][0]["name"] == "s__weather_forecast"
    assert "note" not in data
    assert any("thing number 3" in text for text in service.texts)


async def test_search_with_a_multilingual_model_finds_tools_in_another_language(
    service: Service, config: Path
) -> None:
    query = "天气 vorhersage"
    with_it = await found(config, query)
    service.always = refusing
    by_words = await found(config, query)

    assert (with_it["method"], with_it["fits"]) == ("hybrid", True)
    assert with_it["results"][0]["name"] == "s__weather_forecast"
    assert (by_words["method"], by_words["fits"], by_words["results"]) == ("lexical", False, [])


@pytest.mark.parametrize("how", ["refused", "never", "gone"])
async def test_search_is_lexical_and_says_so_if_the_endpoint_fails(
    workshop: Workshop, service: Service, how: str
) -> None:
    workshop.server("s", tools=TOOLS)
    service.always = service.never if how == "never" else refusing
    short = {"embedding_query_seconds": 0.2, "embedding_seconds": 0.2}
    gone = {"endpoint": "http://127.0.0.1:9/v1"} if how == "gone" else {}
    data = await found(configured(workshop, service, short, **gone))

    assert data["method"] == "lexical"
    assert data["results"][0]["name"] == "s__weather_forecast"
    assert data["note"].startswith("Searched by words only: embedding model embedder at http://127.0.0.1")
    assert KEY not in json.dumps(data)


async def test_search_is_lexical_if_only_the_query_cannot_be_embedded(config: Path, service: Service) -> None:
    async with inside(config) as proxy:
        host = Host(proxy, "modern")
        await proxy.searcher.index(proxy.catalog.snapshot)
        service.always = refusing
        data = await host.data("search_available_tools", {"query": QUERY})
        asked = len(service.requests)
        again = await host.data("search_available_tools", {"query": QUERY})

    assert data["method"] == again["method"] == "lexical"
    assert "HTTP status 401" in data["note"]
    assert data["results"][0]["name"] == "s__weather_forecast"
    assert len(service.requests) == asked, "a service that has just failed is left alone"


def test_an_endpoint_that_comes_back_is_used_again_for_the_catalog_and_for_queries(
    config: Path, service: Service
) -> None:
    now = [0.0]
    source = Source(
        "s", tuple(Tool("s", t["name"], t["name"], json.dumps(t).encode(), t["name"]) for t in TOOLS)
    )
    catalog = Snapshot(1, (source,))
    with open_store("memory") as store:
        model = LazyModel(partial(open_model, load(config, environ={})), clock=lambda: now[0])
        engine = Engine(CachedEmbedder(model, store.vectors), QueryEmbedder(model), calibration="anything")
        service.always = refusing
        engine.index(catalog)
        before = engine.search(QUERY, catalog)
        service.always, now[0] = None, RETRY_SECONDS
        assert not engine.indexed(catalog)
        after = engine.search(QUERY, catalog)
        model.close()

    assert (before.method, after.method) == ("lexical", "hybrid")
    assert after.note is None
    assert engine.indexed(catalog)


async def test_another_model_never_says_that_nothing_fits_without_a_configured_cosine(
    workshop: Workshop, service: Service, config: Path
) -> None:
    unrelated = "book an appointment at the dentist"
    untold = await found(config, unrelated)
    told = await found(configured(workshop, service, fitting_cosine=0.99), unrelated)
    packaged = await found(workshop.config(), unrelated)

    assert untold["fits"]
    assert not told["fits"]
    assert told["near_misses"]
    assert not packaged["fits"]


async def test_another_model_selects_beyond_top_n_only_above_a_configured_score(
    workshop: Workshop, service: Service
) -> None:
    """Cosines of other models have another scale: with some, everything is above 0.7."""
    twins = [tool(f"twin_{n}", "weather forecast") for n in range(8)]
    workshop.server("s", tools=twins)
    embedding = {"model": "embedder", "endpoint": service.url}
    limits = {"embedding_query_seconds": 30.0}
    plain = await found(workshop.config(embedding=embedding, limits=limits))
    by_hand = await found(workshop.config(embedding=embedding, limits=limits, search={"include_score": 0.3}))

    assert len(plain["results"]) == 5
    assert len(by_hand["results"]) == 8


async def test_a_proxy_ends_at_once_although_its_endpoint_never_answers(
    workshop: Workshop, service: Service
) -> None:
    workshop.server("s", tools=TOOLS)
    service.always = service.never
    config = configured(workshop, service, {"embedding_query_seconds": 300.0, "embedding_seconds": 300.0})
    with anyio.fail_after(60):
        async with inside(config) as proxy:
            proxy.searcher.indexing.prepare(proxy.catalog.snapshot)
            assert await anyio.to_thread.run_sync(service.asked.wait, 30)


async def test_a_host_that_searches_over_stdio_gets_an_answer_from_a_dead_endpoint_too(
    workshop: Workshop, service: Service
) -> None:
    workshop.server("s", tools=TOOLS)
    service.always = service.never
    config = configured(workshop, service, {"embedding_query_seconds": 0.2, "embedding_seconds": 0.2})
    async with stdio(command(config)) as client:
        await client.until_listed("s__weather_forecast")
        answer = await client.data("search_available_tools", {"query": QUERY})

    assert answer["results"][0]["name"] == "s__weather_forecast"
    assert "no answer within 0.2 s" in answer["note"]


async def test_a_folder_of_another_model_is_searched_with(workshop: Workshop, tmp_path: Path) -> None:
    workshop.server("s", tools=[tool("send_mail", "send mail"), tool("make_issue", "create issue")])
    folder = write_export(tmp_path / "other")
    data = await found(workshop.config(embedding={"model": str(folder)}), "create issue")

    assert data["method"] == "hybrid"
    assert data["results"][0]["name"] == "s__make_issue"


def run(config: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, *args),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


async def test_check_tries_the_endpoint(config: Path, service: Service) -> None:
    good = run(config, "check")
    service.always = refusing
    bad = run(config, "check")

    assert good.returncode == 0, good.stdout
    assert "16 dimensions" in good.stdout
    assert bad.returncode == 1
    told = " ".join(bad.stdout.split())
    assert "HTTP status 401" in told
    assert "set embedding.api_key" in told
    assert KEY not in bad.stdout + bad.stderr


async def test_eval_measures_the_model_of_the_given_configuration(
    config: Path, service: Service, tmp_path: Path
) -> None:
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    lines = [{"server": "s", "name": t["name"], "description": t["description"]} for t in TOOLS]
    corpus.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    queries.write_text(
        json.dumps({"query": "天气 vorhersage", "relevant": [["s", "weather_forecast"]]}), encoding="utf-8"
    )
    done = run(config, "eval", str(corpus), str(queries), "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measures"]["recall@1"]["mean"] == 1.0
    assert "天气 vorhersage" in service.texts


async def test_index_uses_the_endpoint_and_fails_if_it_fails(config: Path, service: Service) -> None:
    good = run(config, "index")
    service.always = refusing
    bad = run(config, "index")

    assert good.returncode == 0
    assert any("weather forecast" in text for text in service.texts)
    assert bad.returncode == 1
    assert "HTTP status 401" in " ".join(bad.stdout.split())


@pytest.mark.parametrize("name", ["DEBUG", "INFO"])
async def test_the_key_is_never_logged(config: Path, service: Service, name: str) -> None:
    service.always = refusing
    done = run(config, "--log-level", name.lower(), "search", QUERY)

    assert done.returncode == 0
    assert "401" in done.stderr
    assert KEY not in done.stdout + done.stderr
