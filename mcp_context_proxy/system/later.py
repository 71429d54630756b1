"""Libraries that are imported, and regular expressions that are compiled, at their first use.

A proxy that has not searched does without them. numpy takes 15 MB and 0.1 s: modules write
``from mcp_context_proxy.system.later import np`` instead of ``import numpy as np``, and make no array while
they are imported. Type checkers see the library itself. A large expression takes a millisecond.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
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


__all__ = ["NDArray", "html", "importing", "inspect", "np", "pattern", "platformdirs", "yaml"]
