"""Entry point of ``mcp-context-proxy`` and ``python -m mcp_context_proxy``."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_VARIABLE = "MCP_CONTEXT_PROXY_OWN"
"""If it is set, ``serve`` has a proxy of its own, as with ``--own``; for containers and service managers."""

COMPLETION_VARIABLE = "_MCP_CONTEXT_PROXY_COMPLETE"
"""If it is set, a shell asks how a command line could go on."""


def main() -> None:
    """Run the command line, or only what it leads to: a bridge to a shared proxy, a host's hook, a proxy."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # or else the next file would have its number, and be taken for a stream
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
    arguments = sys.argv[1:]
    # A port instead of a socket has never been tried on Windows, so there it is for those who ask for it.
    meets = sys.platform != "win32" or bool(os.environ.get("MCP_CONTEXT_PROXY_LOOPBACK"))
    if arguments[:2] == ["hook", "run"] and meets:
        # From the module itself: the package would look whether it is a name of the library.
        from mcp_context_proxy.bridge import run as hook  # noqa: PLC0415 - nothing else that takes time

        # To take the interpreter down in order takes a tenth of the time that a host waits.
        os._exit(hook(arguments[2:], os.environ))
    completes = COMPLETION_VARIABLE in os.environ
    if joins(arguments) and meets and not os.environ.get(OWN_VARIABLE) and not completes:
        from mcp_context_proxy.bridge import session  # noqa: PLC0415 - the same

        if session.run(arguments, os.environ):
            return
    # No plugin of another package has a part in the SDK's models, and to look for them takes time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if not completes and (options := plain_serve(arguments)) is not None:
        # A tenth of a start would be searches for garbage, of which it makes none: `serve` begins with them.
        gc.disable()
        from mcp_context_proxy.serving import LEVELS, SERVING_LEVEL  # noqa: PLC0415 - no parser of commands
        from mcp_context_proxy.serving import main as serve  # noqa: PLC0415

        log_level = options.get("--log-level", SERVING_LEVEL)
        if log_level in LEVELS:
            status = serve(options.get("--config"), log_level, options.get("--listen-on"))
            from mcp_context_proxy.system.process import leave  # noqa: PLC0415 - imported by then

            leave(status)
    import signal  # noqa: PLC0415 - the two above do without it, and without the next

    from mcp_context_proxy.system.later import importing  # noqa: PLC0415

    # Nothing has begun yet that Ctrl-C could interrupt, so it needs no traceback.
    ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with importing():
        from mcp_context_proxy.cli import main as run  # noqa: PLC0415 - hundreds of modules
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    run()


def joins(arguments: Sequence[str]) -> bool:
    """Return whether a command line is a ``serve`` over stdio that may share a proxy.

    The command line proper words the errors about all others.
    """
    words = iter(arguments)
    for word in words:
        name, joined, value = word.partition("=")
        if name in {"--config", "--log-level", "--profile", "--preset"}:
            if (value if joined else next(words, "-")).startswith("-"):
                return False  # its value is missing
        elif word not in {"serve", "--shared"}:
            return False
    return True


def plain_serve(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options of a ``serve`` over stdio as most programs start it; None for another command line.

    The command line proper understands all others, and words the errors about them.
    """
    options: dict[str, str] = {}
    words, serves = iter(arguments), False
    for word in words:
        name, joined, value = word.partition("=")
        if word == "serve" and not serves:
            serves = True
        elif word == "--own" and serves:
            continue
        elif name in ("--config", "--listen-on" if serves else "--log-level"):
            given = value if joined else next(words, "")
            if not given or given.startswith("-"):
                return None
            options[name] = given
        else:
            return None
    return options


if __name__ == "__main__":
    main()
