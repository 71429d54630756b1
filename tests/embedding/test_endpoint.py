"""A model behind an HTTP endpoint: the requests, the usable responses, and the text of each failure."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.embeddings import DIMENSIONS, Asked, Service, embedding_service, vector_of

from mcp_context_proxy.config import EmbeddingConfig, Limits
from mcp_context_proxy.embedding.embeddings import RETRY_SECONDS, CachedEmbedder, LazyModel
from mcp_context_proxy.embedding.endpoint import ATTEMPTS, CHARACTERS, TEXTS_A_REQUEST, EndpointModel
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.store.opening import open_store

PATIENT = Limits(embedding_seconds=30.0, embedding_query_seconds=30.0)
HASTY = Limits(embedding_seconds=0.2, embedding_query_seconds=0.2)
KEY = "sk-very-secret-key"


@pytest.fixture
def service() -> Iterator[Service]:
    with embedding_service() as running:
        yield running


@pytest.fixture
def opened(service: Service) -> Iterator[Callable[..., EndpointModel]]:
    models = []

    def open_model(limits: Limits = PATIENT, **settings: Any) -> EndpointModel:
        given = {"model": "embedder", "endpoint": service.url, **settings}
        models.append(EndpointModel(EmbeddingConfig(**given), limits))
        return models[-1]

    yield open_model
    for model in models:
        model.close()


def unit(text: str) -> np.ndarray:
    vector = np.array(vector_of(text))
    return vector / np.linalg.norm(vector)


def test_vectors_come_in_order_and_with_norm_1(opened, service):
    texts = [f"text {number}" for number in range(2 * TEXTS_A_REQUEST + 3)]
    model = opened(api_key=KEY)

    np.testing.assert_allclose(model.embed(texts), [unit(text) for text in texts], atol=1e-6)
    assert model.dimensions == DIMENSIONS
    assert [len(asked.texts) for asked in service.requests[1:]] == [TEXTS_A_REQUEST, TEXTS_A_REQUEST, 3]
    assert {asked.body["model"] for asked in service.requests} == {"embedder"}
    assert {asked.headers["Authorization"] for asked in service.requests} == {f"Bearer {KEY}"}


def test_without_a_key_none_is_sent(opened, service):
    opened().embed_queries(["a"])

    assert all("Authorization" not in asked.headers for asked in service.requests)


def test_vectors_out_of_order_are_put_in_order_by_their_index(opened, service):
    model = opened()
    assert model.dimensions
    service.misbehaviour = [lambda asked: asked.answer(200, {"data": asked.vectors()[::-1]})]

    np.testing.assert_allclose(model.embed(["a", "b"]), [unit("a"), unit("b")], atol=1e-6)


def test_queries_and_passages_have_their_prefixes(opened, service):
    model = opened(query_prefix="query: ", passage_prefix="passage: ")
    model.embed(["a tool"])
    model.embed_queries(["a need"])

    assert service.texts[1:] == ["passage: a tool", "query: a need"]


def test_long_text_is_cut_and_half_a_character_is_replaced(opened, service):
    opened().embed(["x" * 10_000, "half \ud83d"])

    assert [len(text) for text in service.texts[1:]] == [CHARACTERS, len("half ?")]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"passage_prefix": "passage: "}, {}), ({"model": "a"}, {"model": "b"})],
)
def test_every_setting_that_changes_the_vectors_changes_the_model_id(opened, one, other):
    assert opened(**one).model_id != opened(**other).model_id


def test_a_model_of_another_length_under_the_same_name_is_another_model(opened, service):
    before = opened().model_id
    service.always = lambda asked: asked.answer(200, {"data": asked.vectors(8)})

    assert opened().model_id != before


def bad(content: Any) -> Callable[[Asked], None]:
    return lambda asked: asked.answer(200, content)


def one_too_few(asked: Asked) -> None:
    asked.answer(200, {"data": asked.vectors()[:-1]})


def of_two_lengths(asked: Asked) -> None:
    asked.answer(200, {"data": [*asked.vectors()[:-1], *asked.vectors(8)[-1:]]})


def shorter(asked: Asked) -> None:
    asked.answer(200, {"data": asked.vectors(8)})


def all_zero(asked: Asked) -> None:
    asked.answer(200, {"data": [{"embedding": [0.0] * DIMENSIONS} for _ in asked.texts]})


@pytest.mark.parametrize(
    ("misbehaviour", "told"),
    [
        pytest.param(one_too_few, "it gave 1 vectors for 2 texts", id="count"),
        pytest.param(of_two_lengths, "its vectors have 8 and 16 numbers, where 16 were expected", id="mixed"),
        pytest.param(shorter, "its vectors have 8 numbers, where 16 were expected; restart", id="length"),
        pytest.param(all_zero, "unusable vector", id="zero"),
        pytest.param(bad(b"<html>"), "its answer does not follow the API", id="not JSON"),
        pytest.param(bad({"data": [{"embedding": "AAAA"}] * 2}), "does not follow the API", id="no numbers"),
        pytest.param(bad({"error": "no"}), "does not follow the API", id="no data"),
        pytest.param(
            bad(b'{"data":[{"embedding":[1e999]},{"embedding":[1]}]}'), "follow the API", id="infinite"
        ),
    ],
)
def test_a_response_that_does_not_fit_the_request_is_refused(opened, service, misbehaviour, told):
    model = opened()
    assert model.dimensions == DIMENSIONS
    service.misbehaviour = [misbehaviour]

    with pytest.raises(ModelError, match=told):
        model.embed(["a", "b"])
    assert len(service.requests) == 2, "the same request would have the same answer"


def status(code: int, message: str = "", **headers: str) -> Callable[[Asked], None]:
    return lambda asked: asked.answer(code, {"error": {"message": message}}, **headers)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (401, "set embedding.api_key"),
        (403, "set embedding.api_key"),
        (404, "ollama pull"),
        (400, "OpenAI API"),
    ],
)
def test_an_error_status_comes_with_a_remedy_and_without_the_key(opened, service, code, remedy):
    service.always = status(code, f"the key {KEY} is not known")

    with pytest.raises(ModelError) as caught:
        opened(api_key=KEY).embed(["a"])
    assert f"HTTP status {code}" in caught.value.reason
    assert remedy in caught.value.remedy
    assert KEY not in str(caught.value)
    assert "[redacted embedding.api_key] is not known" in str(caught.value)
    assert len(service.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_requests_for_the_catalog_are_retried_while_the_service_is_busy(opened, service, code):
    model = opened()
    assert model.dimensions
    service.misbehaviour = [status(code, retry_after="0")] * (ATTEMPTS - 1)

    np.testing.assert_allclose(model.embed(["a"]), [unit("a")], atol=1e-6)
    assert len(service.requests) == 1 + ATTEMPTS


def test_a_service_that_stays_busy_is_given_up(opened, service):
    model = opened()
    assert model.dimensions
    service.always = status(429, retry_after="0")

    with pytest.raises(ModelError, match=r"429.*limits the number of requests"):
        model.embed(["a"])
    assert len(service.requests) == 1 + ATTEMPTS


def test_a_query_is_not_retried_because_a_caller_waits(opened, service):
    model = opened()
    assert model.dimensions
    service.always = status(503, retry_after="0")

    with pytest.raises(ModelError, match="503"):
        model.embed_queries(["a"])
    assert len(service.requests) == 2


@pytest.mark.parametrize("ask", [EndpointModel.embed, EndpointModel.embed_queries])
def test_a_service_that_never_answers_is_not_waited_for(opened, service, ask):
    service.always = service.never

    with pytest.raises(ModelError, match=r"no answer within 0\.2 s"):
        ask(opened(HASTY), ["a"])


def test_an_answer_without_end_is_not_waited_for(opened, service):
    def drip(asked: Asked) -> None:
        asked._handler.send_response(200)
        asked._handler.send_header("Content-Length", "1000000")
        asked._handler.end_headers()
        while not service.released.wait(0.01):
            asked._handler.wfile.write(b" ")

    service.always = drip

    # Who waits and who reads look at the same deadline, and either may be the first to see it pass.
    with pytest.raises(ModelError, match=r"no answer within 0\.2 s|did not end in time"):
        opened(HASTY).embed_queries(["a"])


def test_an_answer_that_is_too_large_is_not_read(opened, service):
    service.always = lambda asked: asked.answer(200, b" " * 200_000)

    with pytest.raises(ModelError, match="larger than"):
        opened(Limits(message_bytes=100_000)).embed_queries(["a"])


def test_an_unreachable_service_is_reported_at_once(opened):
    with pytest.raises(ModelError, match=r"cannot be reached.*start it"):
        opened(endpoint="http://127.0.0.1:9/v1").embed_queries(["a"])


def test_closing_frees_waiting_callers(opened, service):
    model = opened()
    assert model.dimensions
    arrived = threading.Event()

    def never(asked: Asked) -> None:
        arrived.set()
        service.never(asked)

    service.always = never
    errors: list[Exception] = []

    def ask() -> None:
        try:
            model.embed(["a"])
        except EmbeddingCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert arrived.wait(30)
    model.close()
    thread.join(10)

    assert len(errors) == 1


def test_a_failed_service_is_asked_again_after_a_pause(opened, service, caplog):
    now = [0.0]
    lazy = LazyModel(opened, clock=lambda: now[0])
    service.always = status(500)

    def ask() -> Any:
        return lazy.run(lambda model: model.embed_queries(["a"]))

    for _ in range(3):
        with pytest.raises(ModelError, match="500"):
            ask()
    assert len(service.requests) == 1, "while it rests it is not asked"

    now[0], service.always = RETRY_SECONDS, None
    np.testing.assert_allclose(ask(), [unit("a")], atol=1e-6)
    assert lazy.error is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_vectors_of_the_catalog_are_stored_and_those_of_queries_are_not(opened, service, tmp_path):
    with open_store(tmp_path / "store.sqlite3") as store:
        for _ in range(2):
            CachedEmbedder(LazyModel(opened), store.vectors).embed(["a tool", "another tool"])

    assert sorted(service.texts) == ["a tool", "another tool", "dimensions", "dimensions"]
