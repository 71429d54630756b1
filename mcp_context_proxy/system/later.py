"""Libraries that are imported at their first use: a proxy that has not searched does without them.

numpy takes 15 MB and 0.1 s. Modules write ``from mcp_context_proxy.system.later import np`` instead of
``import numpy as np``, and make no array while they are imported. Type checkers see the library itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


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
    import numpy as np
    import yaml
else:
    np, yaml = _Later("numpy"), _Later("yaml")


@contextmanager
def importing() -> Iterator[None]:
    """Import many modules inside, without searches for garbage: there is none, and each looks at them all."""
    gc.disable()
    try:
        yield
    finally:
        # From now on none of it is looked at again.
        gc.freeze()
        gc.enable()


__all__ = ["importing", "np", "yaml"]
