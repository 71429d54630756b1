"""Entry point of ``mcp-context-proxy`` and ``python -m mcp_context_proxy``."""

import os
import sys


def main() -> None:
    """Run the command line, or only the bridge to a shared proxy."""
    if "--shared" in sys.argv and sys.platform != "win32":
        from mcp_context_proxy import bridge  # noqa: PLC0415 - nothing else that takes time to import

        if bridge.run(sys.argv[1:], os.environ):
            return
    from mcp_context_proxy.cli.main import main as run  # noqa: PLC0415 - hundreds of modules

    run()


if __name__ == "__main__":
    main()
