"""Opens graphs and tokenizers: offline, on the CPU, one thread a run, nothing recorded about their use.

Both libraries are imported when something is opened and not before, so that a proxy that never searches never
pays for them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The environment variable that keeps onnxruntime from recording what it is used for."""
ERRORS_ONLY = 3
"""onnxruntime's severity; its warnings are about hardware the proxy does not use."""

UNSIGNED_WEIGHTS = "session.x64quantprecision"
"""onnxruntime's option that makes signed weights unsigned on x86 without VNNI, where products saturate."""
MATRIX_TILES = "amx_int8"
"""A processor with these multiplies signed weights exactly, three times as fast as unsigned ones; there the
option would only slow it down (seen with onnxruntime 1.31)."""

INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""What a graph may ask for."""

_read: dict[Path, Any] = {}
"""The tokenizers opened, by file."""


def open_session(path: Path, optimised: bool = False) -> Any:
    """A graph, ready to run; raises whatever the runtime does.

    One that is ``optimised`` is run as it is, where the processor allows it: it opens in half the time, and
    its vectors are the same.
    """
    # Read when the library is loaded: later, it has already left a device id in the user's cache folder.
    os.environ[NO_TELEMETRY] = "1"
    import onnxruntime  # noqa: PLC0415 - see the module docstring

    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    # Concurrency comes from the caller's threads; a pool per session would spin between runs.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if MATRIX_TILES not in _processor():
        # A step of the optimiser, which is needed for it.
        options.add_session_config_entry(UNSIGNED_WEIGHTS, "1")
    elif optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # From the path and not from bytes: those would stay in memory a second time.
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _processor() -> str:
    """What Linux says of the processors; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def open_tokenizer(path: Path, max_tokens: int) -> Any:
    """A tokenizer that cuts a text, or a pair of them, after so many tokens; raises what the library does."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    tokenizer = _read[path] = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer


def open_vocabulary(path: Path) -> Any:
    """A tokenizer of words alone, which cuts nothing and adds nothing; raises what the library does.

    Shares the vocabulary of the last one opened from the same file: reading it takes 25 ms, in which no other
    thread runs.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    known = _read.get(path) or Tokenizer.from_file(str(path))
    words = Tokenizer(known.model)
    words.normalizer, words.pre_tokenizer = known.normalizer, known.pre_tokenizer
    return words


def inputs_of(session: Any) -> dict[str, Any]:
    """What a graph asks for, each with its type."""
    return {one.name: np.int32 if "int32" in one.type else np.int64 for one in session.get_inputs()}


def feed(inputs: dict[str, Any], ids: Sequence[int], types: Sequence[int]) -> dict[str, Any]:
    """One text a run, so no padding and a mask of ones."""
    values = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
    return {name: np.array([values[name]], kind) for name, kind in inputs.items()}
