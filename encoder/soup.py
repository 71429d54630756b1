"""Mean of the weights of several training runs, built into a model folder as the product reads it.

    python encoder/soup.py BASE OUT MODEL [MODEL ...] [--name NAME] [--share 1.0] [--precision int8]

BASE is the folder with the published tokenizer.json and weights, each MODEL one of encoder/train.py. OUT gets
model.safetensors (the mean) and what the product reads: model.onnx, words.bin, tokenizer.json, manifest.json.
``--share`` below 1 mixes the base in; MODEL may be BASE itself.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

NAME = "tools-MiniLM-L6"


def build_model_script() -> ModuleType:
    """The script that writes the product's graph."""
    path = Path(__file__).parent.parent / "scripts" / "build_model.py"
    spec = importlib.util.spec_from_file_location("build_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_model"] = module
    spec.loader.exec_module(module)
    return module


def mean(base: Path, models: list[Path], share: float) -> dict[str, NDArray[np.float32]]:
    """Weights of the base, moved by ``share`` of the mean way that the models went."""
    weights = {
        name: value.astype(np.float32)
        for name, value in safetensors.numpy.load_file(base / "model.safetensors").items()
        if value.dtype.kind == "f"
    }
    trained = [safetensors.numpy.load_file(model / "model.safetensors") for model in models]
    for name, value in weights.items():
        if all(name in one for one in trained):
            way = sum(one[name].astype(np.float32) - value for one in trained) / np.float32(len(trained))
            weights[name] = np.asarray(value + np.float32(share) * way, np.float32)
    return weights


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument(
        "--precision", choices=("int8", "fp32"), default="int8", help="fp32 is for comparison"
    )
    arguments = parser.parse_args()
    build = build_model_script()
    weights = mean(arguments.base, arguments.models, arguments.share)
    stored = safetensors.numpy.save(weights)
    graph = build.build_model(weights, build.PRECISIONS[arguments.precision])
    words = build.separate_words(graph)
    files = {
        "model.onnx": graph.SerializeToString(deterministic=True),
        "tokenizer.json": build.build_tokenizer((arguments.base / "tokenizer.json").read_bytes()),
        build.WORDS: words,
    }
    facts = build.manifest(files, "model.onnx", arguments.name, hashlib.sha256(stored).hexdigest())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, content in {**files, "manifest.json": facts, "model.safetensors": stored}.items():
        (arguments.out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {len(content):>10,}  {name}")


if __name__ == "__main__":
    main()
