"""Reads files of JSON lines, gzipped or not; says which line of which file cannot be used and why."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from mcp_context_proxy.errors import DataFileError

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Each line that is not blank, decoded, with its number from 1.

    Raises:
        DataFileError: the file or one of its lines cannot be used.
    """
    decode = msgspec.json.Decoder(kind).decode
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise DataFileError(path, number, str(e)) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise DataFileError(path, None, f"it is no whole gzip file ({e})") from None
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be read ({e.strerror or e})") from None


def _opened(path: Path) -> BinaryIO:
    """The file, unpacked on the way where it is gzipped, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")
