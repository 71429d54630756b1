"""One MCP server in front of many: it shows a model only the items that a request needs.

The names of `mcp_context_proxy.library` can be imported from here. They are loaded at first use, so that
serving starts without them.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return a public name of the library, or ``__all__`` of them."""
    from importlib import import_module  # noqa: PLC0415 - loaded with what it is for
    from importlib.util import find_spec  # noqa: PLC0415

    # An import of a submodule asks for its name here first.
    if name == "__all__" or (not name.startswith("_") and find_spec(f"{__name__}.{name}") is None):
        library = import_module("mcp_context_proxy.library")
        if name in ("__all__", *library.__all__):
            found: object = getattr(library, name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for interactive shells."""
    from importlib import import_module  # noqa: PLC0415 - loaded with what it is for

    return sorted({*globals(), *import_module("mcp_context_proxy.library").__all__})
