"""Damaged and incomplete model folders are refused with a reason."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mcp_context_proxy.config import PACKAGED_MODELS
from mcp_context_proxy.embedding import BASE_MODEL, PACKAGED_MODEL
from mcp_context_proxy.embedding.embeddings import OnnxModel, load_model
from mcp_context_proxy.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGED_MODEL, tmp_path / "model"))


def flip_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(sys.platform == "win32", reason="there are none")
@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "words.bin", "tokenizer.json"])
@pytest.mark.parametrize("harm", [make_a_pipe, link_to_a_device])
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(
    folder: Path, name: str, harm: Callable[[Path], None]
) -> None:
    harm(folder / name)

    with pytest.raises(ModelError, match="it is not a regular file"):
        load_model(folder)


@pytest.mark.parametrize("name", ["model.onnx", "words.bin", "tokenizer.json"])
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (Path.unlink, "the file is missing"),
        (empty, "the file is damaged: sha256"),
        (truncate, "the file is damaged: sha256"),
        (flip_one_bit, "the file is damaged: sha256"),
        (make_a_folder, "cannot be read"),
    ],
)
def test_a_damaged_file_is_named_and_not_loaded(
    folder: Path, name: str, harm: Callable[[Path], None], reason: str
) -> None:
    harm(folder / name)

    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert caught.value.place == folder / name
    assert reason in caught.value.reason
    assert "build it again" in caught.value.remedy


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"model": "x", "dimensions": 384, "max_tokens": 256, "sha256": 7}'],
)
def test_a_folder_without_a_usable_manifest_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content, encoding="utf-8")

    with pytest.raises(ModelError, match=r"manifest\.json"):
        load_model(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        load_model(tmp_path / "nowhere")


def test_a_file_that_is_no_model_is_refused_although_its_hash_is_right(folder: Path) -> None:
    """Somebody else's folder: the manifest vouches for the content, the runtime still has to take it."""
    (folder / "model.onnx").write_bytes(b"not a graph")
    edit_manifest(folder, lambda facts: facts["sha256"].update({"model.onnx": sha256(b"not a graph")}))

    with pytest.raises(ModelError, match="the runtime refuses it"):
        load_model(folder)


def test_a_model_of_another_size_than_announced_is_refused(folder: Path) -> None:
    edit_manifest(folder, lambda facts: facts.update(dimensions=768))

    with pytest.raises(ModelError, match="does not give unit vectors of 768 numbers"):
        load_model(folder)


@pytest.mark.parametrize("manifest", [PACKAGED_MODEL / "manifest.json", BASE_MODEL], ids=PACKAGED_MODELS)
def test_the_provenance_names_exactly_the_packaged_files(manifest: Path) -> None:
    """Auditors of the package read PROVENANCE.md: after a rebuild it must describe the new model."""
    provenance = (PACKAGED_MODEL / "PROVENANCE.md").read_text(encoding="utf-8")
    facts = json.loads(manifest.read_text(encoding="utf-8"))

    assert facts["model"] in provenance

    for name, digest in [*facts["sha256"].items(), *facts["source_sha256"].items()]:
        assert f"`{digest}`" in provenance, name
    for tool in ("onnx", "numpy", "safetensors", "protobuf"):
        assert f"{tool}=={facts['built_with'][tool]}" in provenance


def test_every_packaged_file_belongs_to_a_model() -> None:
    named = {"PROVENANCE.md", "LICENSE", "manifest.json", BASE_MODEL.name}
    for manifest in (PACKAGED_MODEL / "manifest.json", BASE_MODEL):
        named |= set(json.loads(manifest.read_text(encoding="utf-8"))["sha256"])

    assert {path.name for path in PACKAGED_MODEL.iterdir()} == named


def test_both_packaged_models_share_the_vectors_of_words_and_are_no_larger_than_one_was() -> None:
    sizes = {path.name: path.stat().st_size for path in PACKAGED_MODEL.iterdir()}
    words = sizes["words.bin"]

    for graph in ("model.onnx", "all-MiniLM-L6-v2.onnx"):
        assert words + sizes[graph] <= 23_100_000
    assert sum(sizes.values()) <= 35_000_000


def test_the_published_model_is_chosen_by_its_name(model: OnnxModel, base_model: OnnxModel) -> None:
    assert model.model_id.startswith("tools-MiniLM-L6@")
    assert base_model.model_id.startswith("all-MiniLM-L6-v2@")
    assert not np.array_equal(model.embed(["send a mail"]), base_model.embed(["send a mail"]))


def test_another_tokenizer_is_another_model(folder: Path, model: OnnxModel) -> None:
    """Vectors of different models never mix, and the tokenizer decides about the vectors too."""
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    edit_manifest(folder, lambda facts: facts["sha256"].update({"tokenizer.json": sha256(path.read_bytes())}))

    assert load_model(folder).model_id != model.model_id


def test_the_same_files_elsewhere_are_the_same_model(folder: Path, model: OnnxModel) -> None:
    assert load_model(folder).model_id == model.model_id


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def edit_manifest(folder: Path, edit: Callable[[dict[str, dict[str, str]]], None]) -> None:
    path = folder / "manifest.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    edit(facts)
    path.write_text(json.dumps(facts), encoding="utf-8")
