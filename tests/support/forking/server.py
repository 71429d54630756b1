"""Forks a process for each command of the proxy, and passes signals to it: ``server.py SOCKET``.

It imports the package once. A forked process gets the standard streams, the environment, the folder and the
arguments of its launcher, and otherwise is like one that was just started. The server ends, with all the
processes that it forked, when its standard input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import marshal
import os
import pkgutil
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from mcp_context_proxy.embedding.embeddings import OnnxModel

NOT_OF_THE_PROXY = ("mcp_context_proxy.__main__", "mcp_context_proxy.bridge", "mcp_context_proxy.examples")
"""Modules of other programs in the package, with those below them."""

NEEDED_LATER = (
    "anyio._backends._asyncio",
    "anyio._core._signals",
    "encodings.ascii",
    "encodings.idna",
    "encodings.utf_8_sig",
    "jwt",
    "platformdirs.unix",
    "rich._emoji_codes",
    "rich.progress",
    "rich.status",
    "rich.table",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "yaml",
)
"""Modules of libraries that a command imports when it first needs them."""


class Server:
    """Forks processes and waits for all of them at once."""

    def __init__(self, path: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(100)
        Path(f"{path}.new").rename(path)  # whoever sees it can connect
        self._children: set[int] = set()

    def serve(self) -> None:
        """Serve launchers until standard input ends."""
        self._watch(0, lambda: None)
        self._watch(self._listener.fileno(), self._accept)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    for child in self._children:
                        os.kill(child, signal.SIGKILL)
                    return
                if self._selector.get_map().get(key.fd) == key:  # no earlier event has ended it
                    key.data()

    def _watch(self, descriptor: int, handle: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handle)

    def _accept(self) -> None:
        launcher, _ = self._listener.accept()
        header, streams, _, _ = socket.recv_fds(launcher, 4, 3)
        with launcher.makefile("rb") as reader:
            size = int.from_bytes(header, "big")
            request = reader.read(size)
        if len(streams) < 3 or len(request) < size:
            # The launcher was killed while it wrote.
            for stream in streams:
                os.close(stream)
            launcher.close()
            return
        # The child keeps the other end of this pipe open until it ends.
        ended, alive = os.pipe()
        child = os.fork()
        if child == 0:
            for descriptor in [*self._selector.get_map(), ended]:
                if descriptor != 0:
                    os.close(descriptor)
            launcher.close()
            run_command(marshal.loads(request), streams)
        self._children.add(child)
        for descriptor in (alive, *streams):
            os.close(descriptor)

        def signalled() -> None:
            numbers = launcher.recv(100)
            for number in numbers or [signal.SIGKILL]:
                os.kill(child, number)
            if not numbers:
                self._selector.unregister(launcher)

        def exited() -> None:
            self._selector.unregister(ended)
            os.close(ended)
            _, status = os.waitpid(child, 0)
            self._children.remove(child)
            if launcher.fileno() in self._selector.get_map():
                self._selector.unregister(launcher)
                with contextlib.suppress(OSError):
                    launcher.send(str(os.waitstatus_to_exitcode(status)).encode())
            launcher.close()

        self._watch(launcher.fileno(), signalled)
        self._watch(ended, exited)


def run_command(request: dict[str, Any], streams: list[int]) -> None:
    """Run a command, or a program after `-c`, in this process as the interpreter would, and exit."""
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    sys.stdin = text_stream(0, "rb")
    sys.stdout = text_stream(1, "wb")
    sys.stderr = text_stream(2, "wb", errors="backslashreplace", line_buffering=True)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["mcp-context-proxy", *request["arguments"]]
    status = 0
    try:
        if sys.argv[1:2] == ["-c"]:
            _, _, program, *arguments = sys.argv
            sys.argv = ["-c", *arguments]
            exec(program, {"__name__": "__main__"})
        else:
            importlib.import_module("mcp_context_proxy.cli").main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # What the interpreter does at its end; an exception would end in the loop of the server.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def text_stream(descriptor: int, mode: str, **options: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(os.fdopen(descriptor, mode, closefd=False), "utf-8", **options)


def prepare() -> OnnxModel:
    """Import the modules that a command imports when it is needed, and compute what each would compute.

    The packaged model is shared with each command as long as the answer is kept. The thread that onnxruntime
    starts does nothing that a forked process would miss.
    """
    import mcp_context_proxy
    from mcp_context_proxy.embedding.embeddings import load_model
    from mcp_context_proxy.oauth.bearer import client_with
    from mcp_context_proxy.server.meta_definitions import Setup, definitions

    for module in pkgutil.walk_packages(mcp_context_proxy.__path__, "mcp_context_proxy."):
        if not module.name.startswith(NOT_OF_THE_PROXY):
            importlib.import_module(module.name)
    for name in NEEDED_LATER:
        importlib.import_module(name)
    for whole in (False, True):
        for chosen in (False, True):
            definitions(Setup((), whole, set_context=chosen, manage=chosen, recall=True))
    anyio.run(client_with, None)
    anyio.run(run_once)
    # The model's threads end with it, once a thread that was abandoned in the middle has let go of it.
    while others := [each for each in threading.enumerate() if each is not threading.main_thread()]:
        gc.collect()
        others[0].join(0.1)
    model = load_model()
    gc.freeze()
    return model


async def run_once() -> None:
    """Run a proxy without servers and search, so that settings, routes and expressions are compiled."""
    from mcp_context_proxy.app.serve import local_api, open_proxy
    from mcp_context_proxy.config import load
    from mcp_context_proxy.web.search import LookWanted, look

    with tempfile.TemporaryDirectory() as folder:
        rule, config = Path(folder) / "loans.md", Path(folder) / "config.toml"
        rule.write_text("# Loans\n\nRound the payment.\n", encoding="utf-8")
        settings = f'store.path = "memory"\n[servers]\n[[documents]]\npath = {json.dumps(str(rule))}\n'
        config.write_text(settings, encoding="utf-8")
        async with open_proxy(load(config, environ={})) as proxy:
            local_api(proxy)
            wanted = LookWanted(query="the payment of a loan")
            found = await look(proxy.contexts, proxy.fleet, proxy.usage, wanted)
            assert found["results"], found


def main(path: str) -> None:
    sys.path.append(str(Path(__file__).parents[2]))
    from support import measuring

    measuring.begin()  # before anything imports the package
    model = prepare()
    Server(path).serve()
    del model


if __name__ == "__main__":
    main(*sys.argv[1:])
