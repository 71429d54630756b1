"""Libraries and modules that are imported, and regular expressions that are compiled, at their first use.

A proxy that has not searched does without them. numpy takes 15 MB and 0.1 s: modules write
``from mcp_context_proxy.system.later import np`` instead of ``import numpy as np``, and make no array while
they are imported. Type checkers see the library itself. A large expression takes a millisecond.

An update in place replaces the files of the package while a proxy runs. Modules of two versions seldom fit
together, so the proxy keeps files open that it may still need, and reads them although they are deleted.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, AnyStr, Final, cast


class _Later(ModuleType):
    """Stands for a library, and is like it from the first access on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever inspects modules does not use this one
            raise AttributeError(name)
        library = import_module(self.__name__)
        # From now on found without this method, as in the library itself.
        self.__dict__.update({key: value for key, value in vars(library).items() if key not in self.__dict__})
        return getattr(library, name)


if TYPE_CHECKING:
    import html

    import numpy as np
    import platformdirs
    import yaml
    from msgspec import inspect
    from numpy.typing import NDArray
else:
    np, yaml, html, inspect, platformdirs = map(
        _Later, ("numpy", "yaml", "html", "msgspec.inspect", "platformdirs")
    )
    NDArray = object  # for annotations alone, which nothing evaluates


class _LaterPattern:
    """Stands for a regular expression, and has its methods from the first access on."""

    def __init__(self, source: str | bytes | Callable[[], str | bytes], flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        source = self._source() if callable(self._source) else self._source
        compiled = re.compile(source, self._flags)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


_METHODS: Final = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")


def pattern(source: AnyStr | Callable[[], AnyStr], flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled at its first use; for a module that a start imports.

    A function returns a source that takes time itself, such as one with all letters of a kind.
    """
    return cast("re.Pattern[AnyStr]", _LaterPattern(source, flags))


@contextmanager
def importing() -> Iterator[None]:
    """Import many modules inside, without searches for garbage: there is none, and each looks at them all."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # From now on none of it is looked at again.
        gc.freeze()
        if searched:
            gc.enable()


_PACKAGE: Final = Path(__file__).parents[1]

_COMMANDS: Final = frozenset(("cli", "examples", "__pycache__"))
"""Folders of the package of which a proxy reads nothing."""

_TEXTS: Final = frozenset((".py", ".txt", ".html", ".css", ".js"))
"""Endings of the files that belong to the code. Models and vectors say themselves which belong together."""

_KEPT_SHARE: Final = 1 / 8
"""Share of the file descriptors that this may take; where more are needed, no file is kept."""

_kept: Final[dict[Path, int]] = {}
"""Descriptors of the files of the package that are kept."""


def keep_files() -> None:
    """Keep the files of the package open that may still be needed. Blocks for a few milliseconds.

    On Windows, where no file that is open can be replaced, none is kept.
    """
    if _kept or sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on Windows

    imported = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    unread = list[Path]()
    for folder, below, names in os.walk(_PACKAGE):
        below[:] = [name for name in below if name not in _COMMANDS]
        unread += (path for name in names if (path := Path(folder, name)).suffix in _TEXTS)
    unread = [path for path in unread if str(path) not in imported]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and len(unread) > most * _KEPT_SHARE:
        return
    sys.meta_path.insert(0, _KeptModules())
    for path in sorted(unread):
        with suppress(OSError):
            _kept[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def packaged_text(path: Path) -> str:
    """Return the text of a file of the package, as it was when this process began."""
    if (descriptor := _kept.get(path)) is None:
        return path.read_text(encoding="utf-8")
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


class _KeptModules:
    """Finds the modules that were kept and that an update has replaced."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = _PACKAGE.parent.joinpath(*name.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if (descriptor := _kept.get(file)) is None:
                continue
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    return None  # the compiled one is quicker
            # Not before: a module that is imported for each import is looked for without end.
            from importlib.util import spec_from_file_location  # noqa: PLC0415 - seldom needed

            return spec_from_file_location(name, file, loader=_KeptSource(name, str(file)))
        return None


class _KeptSource(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(packaged_text(Path(self.path)), self.path)


__all__ = [
    "NDArray",
    "html",
    "importing",
    "inspect",
    "keep_files",
    "np",
    "packaged_text",
    "pattern",
    "platformdirs",
    "yaml",
]
