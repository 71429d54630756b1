"""A model folder is what its manifest says: nothing in it is loaded before its SHA-256 is right."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_context_proxy.errors import ModelError

MANIFEST, GRAPH, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
"""The files of a model folder, as scripts/build_model.py writes them."""

BLOCK = 8 * 1024 * 1024
"""Bytes hashed at a time. After each block the thread waits for the interpreter, up to 5 ms where another
reads words meanwhile: with the 256 KiB of `hashlib.file_digest` 120 ms in all instead of 25."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a model folder."""

    model: str
    dimensions: int
    max_tokens: int
    """Longer texts are cut there, [CLS] and [SEP] included."""
    sha256: Mapping[str, str]
    """By file name."""

    @property
    def model_id(self) -> str:
        """Name and content: changes with the graph and with the tokenizer, as the vectors do."""
        content = "".join(self.sha256[name] for name in (GRAPH, TOKENIZER))
        return f"{self.model}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def verified_manifest(directory: Path, remedy: str) -> Manifest:
    """Read the manifest and check the files it names.

    Raises:
        ModelError: a file is missing, cannot be read, or is not what the manifest says.
    """
    manifest = _read_manifest(directory / MANIFEST, remedy)
    for name in (GRAPH, TOKENIZER):
        _verify(directory / name, manifest.sha256[name], remedy)
    return manifest


def _read_manifest(path: Path, remedy: str) -> Manifest:
    try:
        facts = json.loads(text_of(path))
        return Manifest(
            model=str(facts["model"]),
            dimensions=int(facts["dimensions"]),
            max_tokens=int(facts["max_tokens"]),
            sha256={name: str(facts["sha256"][name]) for name in (GRAPH, TOKENIZER)},
        )
    except OSError as e:
        raise ModelError(path, cause(e), remedy) from e
    except (ValueError, KeyError, TypeError) as e:
        raise ModelError(path, "the file is damaged: it is not a manifest", remedy) from e


def _verify(path: Path, expected: str, remedy: str) -> None:
    try:
        actual = digest(path)
    except OSError as e:
        raise ModelError(path, cause(e), remedy) from e
    if actual != expected:
        raise ModelError(
            path, f"the file is damaged: sha256 {actual[:12]}..., expected {expected[:12]}...", remedy
        )


def text_of(path: Path) -> str:
    """A file of a model folder; raises `OSError` or `ValueError`."""
    _must_be_regular(path)
    return path.read_text(encoding="utf-8")


def _must_be_regular(path: Path) -> None:
    """Opening a pipe would wait for a writer, and a device may have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits. Raises `OSError`."""
    _must_be_regular(path)
    hashed, block = hashlib.sha256(), bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            hashed.update(memoryview(block)[:size])
    return hashed.hexdigest()


def cause(e: OSError) -> str:
    """Why a file cannot be used, for a person."""
    return "the file is missing" if isinstance(e, FileNotFoundError) else f"cannot be read: {e.strerror or e}"
