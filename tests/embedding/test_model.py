"""The packaged models against the ones in float32, and against themselves."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import OnnxModel, load_model

DATA = Path(__file__).parent / "data"
TEXTS: list[str] = json.loads((DATA / "reference_texts.json").read_text(encoding="utf-8"))


def test_a_model_in_use_is_shared_by_all_who_configure_it_alike(model: OnnxModel) -> None:
    assert load_model() is model
    assert load_model(settings=EmbeddingConfig(max_tokens=8)) is not model


def test_vectors_of_tools_agree_with_the_official_model(base_model: OnnxModel) -> None:
    """100 real tools. Measured: mean 0.9945, min 0.9911; the floors are within reach of this kind of file."""
    texts = json.loads((DATA / "tool_texts.json").read_text(encoding="utf-8"))
    with np.load(DATA / "tool_vectors.npz") as reference:
        cosines = (base_model.embed(texts) * reference["vectors"]).sum(axis=1)

    assert len(texts) == 100
    assert cosines.mean() >= 0.9939
    assert cosines.min() >= 0.9805


def test_vectors_of_odd_texts_agree_with_the_official_model(base_model: OnnxModel) -> None:
    """The reference is float32 in torch (data/make_reference.py). Measured: mean 0.9925, min 0.9774; another
    kind of processor moves single texts by up to 0.002.
    """
    with np.load(DATA / "reference.npz") as reference:
        cosines = (base_model.embed(TEXTS) * reference["vectors"]).sum(axis=1)

    assert cosines.mean() >= 0.992
    assert cosines.min() >= 0.975


def test_vectors_of_the_trained_model_agree_with_its_weights_in_float32(model: OnnxModel) -> None:
    """The reference is encoder/minilm.py with the weights before they became bytes."""
    listed = ("tool_texts", "reference_texts")
    with np.load(DATA / "tools_model_vectors.npz") as reference:
        cosines = {
            name: (model.embed(json.loads((DATA / f"{name}.json").read_text("utf-8"))) * reference[name]).sum(
                1
            )
            for name in listed
        }

    assert [found.size for found in cosines.values()] == [100, 100]
    assert min(found.mean() for found in cosines.values()) >= 0.99
    assert min(found.min() for found in cosines.values()) >= 0.965


def test_neighbours_are_ranked_as_by_the_official_model(base_model: OnnxModel) -> None:
    """Search needs this: the official nearest neighbour is, almost always, still among the first three."""
    with np.load(DATA / "reference.npz") as reference:
        official = reference["vectors"] @ reference["vectors"].T
    vectors = base_model.embed(TEXTS)
    ours = vectors @ vectors.T
    np.fill_diagonal(official, -1)
    np.fill_diagonal(ours, -1)

    first_three = np.argsort(-ours, axis=1)[:, :3]
    kept = (first_three == official.argmax(axis=1, keepdims=True)).any(axis=1)
    assert kept.mean() >= 0.95


def test_a_vector_depends_on_nothing_but_its_text(model: OnnxModel) -> None:
    """Not on the batch, the order, or other work meanwhile: a stored vector equals a fresh one."""
    alone = {text: model.embed([text])[0] for text in TEXTS}
    shuffled = random.Random(7).sample(TEXTS, len(TEXTS))
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(model.embed, [shuffled[:50], shuffled[50:], shuffled, shuffled[::-1]]))

    for texts, batch in zip([shuffled[:50], shuffled[50:], shuffled, shuffled[::-1]], batches, strict=True):
        np.testing.assert_array_equal(batch, np.stack([alone[text] for text in texts]))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" \n\t", id="white space"),
        pytest.param("\x00\x07\x1b[31m", id="control characters"),
        pytest.param("half a pair: \ud83d", id="lone surrogate"),
        pytest.param("a" * 5_000_000, id="one word of five million letters"),
        pytest.param("word " * 1_000_000, id="a million words"),
    ],
)
def test_any_text_has_a_finite_unit_vector(model: OnnxModel, text: str) -> None:
    vector = model.embed([text])[0]

    assert vector.dtype == np.float32
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_only_the_first_256_word_pieces_count(model: OnnxModel) -> None:
    """[CLS] and [SEP] are two of them; 128, which the published tokenizer file says, would be wrong."""
    seen, changed, beyond = model.embed(
        ["word " * 253 + "apple", "word " * 253 + "orange", "word " * 253 + "apple" + " orange" * 500]
    )

    assert not np.array_equal(seen, changed)
    np.testing.assert_array_equal(seen, beyond)


def test_no_texts_give_an_empty_matrix(model: OnnxModel) -> None:
    assert model.embed([]).shape == (0, model.dimensions) == (0, 384)


def test_importing_the_package_loads_no_runtime() -> None:
    """`tools/list` must be answered before anything heavy is loaded."""
    code = "import sys, mcp_context_proxy.embedding; print({'onnxruntime', 'tokenizers'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True
    )

    assert (result.stdout.strip(), result.stderr) == ("set()", "")


def test_loading_and_embedding_print_nothing() -> None:
    """On stdio, stdout is the protocol; and stderr is for news that a person must know."""
    code = "from mcp_context_proxy.embedding.embeddings import load_model; load_model().embed(['a', 'b'])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True
    )

    assert (result.stdout, result.stderr) == ("", "")


IMPORTS = """
import builtins, sys
from pathlib import Path
from mcp_context_proxy.embedding.embeddings import open_session

plain, ready = builtins.__import__, []

def noted(name, *rest):
    if name == "onnxruntime" and "onnxruntime" not in sys.modules:
        numpy = sys.modules.get("numpy")
        ready.append(numpy is not None and not getattr(numpy.__spec__, "_initializing", False))
    return plain(name, *rest)

assert "numpy" not in sys.modules
builtins.__import__ = noted
try:
    open_session(Path("no-such-graph.onnx"))
except Exception:
    print(ready)
"""


def test_the_runtime_is_imported_once_the_whole_of_numpy_is_there():
    """Beside a thread that imports numpy, the runtime would fail and leave the process without numpy."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[True]"
