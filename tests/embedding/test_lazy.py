"""Loading once, and failing once."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_context_proxy.embedding.embeddings import LazyModel, OnnxModel
from mcp_context_proxy.errors import ModelError


def test_the_model_is_loaded_once_for_all_threads(model: OnnxModel) -> None:
    loads: list[OnnxModel] = []

    def load() -> OnnxModel:
        loads.append(model)
        return model

    lazy = LazyModel(load)
    assert not lazy.loaded
    with ThreadPoolExecutor(8) as pool:
        got = set(pool.map(lambda _: lazy.get(), range(32)))

    assert (got, len(loads), lazy.loaded, lazy.error) == ({model}, 1, True, None)


def test_a_model_that_cannot_be_loaded_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Search asks for the model again and again; the person is told once, and the disk is left alone."""
    attempts: list[str] = []

    def load() -> OnnxModel:
        attempts.append("attempt")
        raise ModelError(Path("model.onnx"), "the file is missing", "reinstall it")

    lazy = LazyModel(load)
    assert lazy.error is None
    for _ in range(3):
        with pytest.raises(ModelError, match="the file is missing"):
            lazy.get()

    assert isinstance(lazy.error, ModelError)
    assert len(attempts) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "model.onnx: the file is missing; reinstall it" in caplog.text
