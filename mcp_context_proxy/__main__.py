"""Entry point of ``mcp-context-proxy`` and ``python -m mcp_context_proxy``."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_VARIABLE = "MCP_CONTEXT_PROXY_OWN"
"""If it is set, ``serve`` has a proxy of its own, as with ``--own``; for containers and service managers."""


def main() -> None:
    """Run the command line, or only the bridge to a shared proxy, or the hook of a host."""
    arguments = sys.argv[1:]
    # A port instead of a socket has never been tried on Windows, so there it is for those who ask for it.
    meets = sys.platform != "win32" or bool(os.environ.get("MCP_CONTEXT_PROXY_LOOPBACK"))
    if arguments[:2] == ["hook", "run"] and meets:
        from mcp_context_proxy.bridge import asking  # noqa: PLC0415 - nothing else that takes time to import

        # To take the interpreter down in order takes a tenth of the time that a host waits.
        os._exit(asking.run(arguments[2:], os.environ))
    if joins(arguments) and meets and not os.environ.get(OWN_VARIABLE):
        from mcp_context_proxy.bridge import session  # noqa: PLC0415 - the same

        if session.run(arguments, os.environ):
            return
    # No plugin of another package has a part in the SDK's models, and to look for them takes time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from mcp_context_proxy.system.later import importing  # noqa: PLC0415 - the two above do without

    with importing():
        from mcp_context_proxy.cli.main import main as run  # noqa: PLC0415 - hundreds of modules

    run()


def joins(arguments: Sequence[str]) -> bool:
    """Return whether a command line is a ``serve`` over stdio that may share a proxy."""
    words = iter(arguments)
    for word in words:
        if word in {"--config", "--log-level", "--profile", "--preset"}:
            next(words, None)
        elif word not in {"serve", "--shared"} and not word.startswith(
            ("--config=", "--log-level=", "--profile=", "--preset=")
        ):
            return False
    return True


if __name__ == "__main__":
    main()
