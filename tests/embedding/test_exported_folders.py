"""Folders of other models, as sentence-transformers and optimum export them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.model_folders import WIDTH, ids_of, table, write_export

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding import PACKAGED_MODEL
from mcp_context_proxy.embedding.embeddings import OnnxModel, load_model
from mcp_context_proxy.errors import ModelError

TEXT = "create issue"


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "model", **how: Any) -> Path:
        return write_export(tmp_path / name, **how)

    return write


def mean(text: str) -> np.ndarray:
    total = table()[ids_of(text)].mean(axis=0)
    return total / np.linalg.norm(total)


def first() -> np.ndarray:
    row = table()[ids_of("")[0]]
    return row / np.linalg.norm(row)


def embedded(model: OnnxModel, text: str = TEXT) -> np.ndarray:
    return model.embed([text])[0]


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"])
def test_a_graph_is_found_in_each_path_that_exporters_use(export, graph):
    model = load_model(export(graph=graph))

    assert model.dimensions == WIDTH
    np.testing.assert_allclose(embedded(model), mean(TEXT), atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, id="flags"),
        pytest.param({"pooling_mode": "mean"}, id="word"),
        pytest.param({}, id="nothing said"),
    ],
)
def test_token_vectors_are_averaged_without_padding(export, config):
    """The published tokenizer.json pads to 128; only a text's own tokens count."""
    model = load_model(export(files={"1_Pooling/config.json": config}))

    np.testing.assert_allclose(embedded(model), mean(TEXT), atol=1e-6)


@pytest.mark.parametrize("config", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_cls_pooling_takes_the_first_token(export, config):
    model = load_model(export(files={"1_Pooling/config.json": config}))

    np.testing.assert_allclose(embedded(model), first(), atol=1e-6)


def test_the_setting_overrides_the_file(export):
    folder = export(files={"1_Pooling/config.json": {"pooling_mode_cls_token": True}})
    model = load_model(folder, EmbeddingConfig(pooling="mean"))

    np.testing.assert_allclose(embedded(model), mean(TEXT), atol=1e-6)


def test_a_graph_with_sentence_output_is_not_pooled_again(export):
    model = load_model(
        export(output="sentence_embedding", files={"1_Pooling/config.json": {"pooling_mode_cls_token": True}})
    )

    np.testing.assert_allclose(embedded(model), mean(TEXT), atol=1e-6)


def test_prefixes_come_from_the_settings_or_from_the_prompts_of_the_folder(export):
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    told = load_model(export("a", files={"config_sentence_transformers.json": prompts}))
    set_by_hand = load_model(export("b"), EmbeddingConfig(query_prefix="query: ", passage_prefix="passage: "))

    for model in (told, set_by_hand):
        np.testing.assert_allclose(embedded(model), mean(f"passage: {TEXT}"), atol=1e-6)
        np.testing.assert_allclose(model.embed_queries([TEXT])[0], mean(f"query: {TEXT}"), atol=1e-6)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"sentence_bert_config.json": {"max_seq_length": 10}}, 8, id="sentence_bert_config"),
        pytest.param({"tokenizer_config.json": {"model_max_length": 10}}, 8, id="tokenizer_config"),
        pytest.param({"config.json": {"max_position_embeddings": 12}}, 8, id="positions less two"),
        pytest.param({"tokenizer_config.json": {"model_max_length": 10**30}}, 510, id="no bound"),
    ],
)
def test_a_text_is_cut_at_the_limit_in_the_folder(export, files, words):
    model = load_model(export(files=files))
    long = "create " * words

    np.testing.assert_array_equal(embedded(model, long + "send " * 600), embedded(model, long))
    assert not np.allclose(embedded(model, long), embedded(model, "create " * (words - 1) + "send"))


def test_max_tokens_overrides_the_folder(export):
    model = load_model(export(), EmbeddingConfig(max_tokens=8))

    np.testing.assert_array_equal(embedded(model, "create " * 6 + "send"), embedded(model, "create " * 6))


@pytest.mark.parametrize("change", ["pooling", "passage_prefix", "max_tokens", "graph"])
def test_every_setting_that_changes_the_vectors_changes_the_model_id(export, change):
    before = load_model(export()).model_id
    settings = {"pooling": "cls", "passage_prefix": "passage: ", "max_tokens": 9}
    how = {"inputs": ("input_ids",)} if change == "graph" else {}
    again = load_model(export(**how), EmbeddingConfig(**{k: v for k, v in settings.items() if k == change}))

    assert again.model_id != before


def test_a_query_prefix_does_not_make_the_catalog_be_embedded_again(export):
    folder = export()

    assert load_model(folder, EmbeddingConfig(query_prefix="query: ")).model_id == load_model(folder).model_id


@pytest.mark.parametrize(
    ("how", "told"),
    [
        pytest.param({"inputs": ("input_ids", "pixel_values")}, "input pixel_values", id="input"),
        pytest.param(
            {"files": {"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}}, "max_tokens", id="max"
        ),
        pytest.param(
            {"files": {"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}}, "lasttoken", id="last"
        ),
        pytest.param(
            {"files": {"modules.json": [{"type": "sentence_transformers.models.Dense"}]}},
            "Dense layer",
            id="dense",
        ),
    ],
)
def test_an_unsupported_model_is_refused(export, how, told):
    with pytest.raises(ModelError, match=told):
        load_model(export(**how))


def test_a_dense_layer_inside_the_graph_is_fine(export):
    files = {"modules.json": [{"type": "sentence_transformers.models.Dense"}]}

    assert load_model(export(output="sentence_embedding", files=files)).dimensions == WIDTH


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("onnx/model.onnx", "neither manifest.json nor model.onnx nor onnx/model.onnx"),
        ("tokenizer.json", "missing"),
    ],
)
def test_the_error_about_an_incomplete_folder_names_the_missing_file(export, missing, told):
    folder = export()
    (folder / missing).unlink()

    with pytest.raises(ModelError, match=told):
        load_model(folder)


def test_the_packaged_files_without_their_manifest_are_an_export_too(tmp_path, model):
    """A copy as somebody else would lay it out gives the same vectors under a name of its own."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("model.onnx", "words.bin", "tokenizer.json"):
        shutil.copy(PACKAGED_MODEL / name, folder / name)
    copied = load_model(folder, EmbeddingConfig(max_tokens=256))

    np.testing.assert_array_equal(copied.embed([TEXT]), model.embed([TEXT]))
    assert copied.model_id != model.model_id
