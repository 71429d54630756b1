"""Entry point of ``mcp-context-proxy`` and ``python -m mcp_context_proxy``."""

import os
import sys
from collections.abc import Sequence


def main() -> None:
    """Run the command line, or only the bridge to a shared proxy, or the hook of a host."""
    arguments = sys.argv[1:]
    if joins(arguments) and sys.platform != "win32":
        from mcp_context_proxy.bridge import session  # noqa: PLC0415 - nothing else that takes time to import

        if session.run(arguments, os.environ):
            return
    from mcp_context_proxy.cli.main import main as run  # noqa: PLC0415 - hundreds of modules

    run()


def joins(arguments: Sequence[str]) -> bool:
    """Return whether a command line is a plain ``serve`` over stdio."""
    if "--shared" not in arguments:
        return False
    words = iter(arguments)
    for word in words:
        if word in {"--config", "--log-level"}:
            next(words, None)
        elif word not in {"serve", "--shared"} and not word.startswith(("--config=", "--log-level=")):
            return False
    return True


if __name__ == "__main__":
    main()
