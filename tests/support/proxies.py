"""Runs the proxy: as a child process, or its parts in this one."""

import itertools
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from msgspec import Raw

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import open_proxy
from mcp_context_proxy.config import load
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.server import Caller
from mcp_context_proxy.system.threads import Flight, Reply
from mcp_context_proxy.trust import THE_USER, Principal
from support import commands
from support.raw_client import AS_DATA, MODERN, PATIENCE, PREFIX, Answer, RpcError, data_of

SERVING = re.compile(r"serving (http://\S+)/mcp")


def command(config: Path, *more: str) -> list[str]:
    """The command line of a proxy, which runs in a forked process."""
    return commands.forked_command("--config", config, *more)


def real_command(config: Path, *more: str) -> list[str]:
    """The command line of a proxy as people start it."""
    return commands.real_command("--config", config, *more)


@dataclass
class HttpProxy:
    """A running proxy with an HTTP front."""

    base: str
    """Its URL without a path."""
    process: subprocess.Popen[str]
    folder: Path


@contextmanager
def http_proxy(
    config: Path,
    *more: str,
    auth: bool = False,
    env: dict[str, str] | None = None,
    level: str = "warning",
    real: bool = False,
) -> Iterator[HttpProxy]:
    """A proxy with an HTTP front on a free port, forked or `real`; with `auth` it asks for a token."""
    log = config.with_suffix(".log")
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            (real_command if real else command)(
                config,
                "--log-level",
                level,
                "serve",
                "--http",
                "--port",
                "0",
                *([] if auth else ["--no-auth"]),
                *more,
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            env=env,
        ) as process,
    ):
        try:
            yield HttpProxy(_base(log, process), process, config.parent)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def _base(log: Path, process: subprocess.Popen[str]) -> str:
    import time

    while process.poll() is None:
        found = SERVING.search(log.read_text(encoding="utf-8"))
        if found:
            return found[1]
        time.sleep(0.01)
    raise AssertionError(log.read_text(encoding="utf-8"))


class Host:
    """A client of a proxy that runs in this process: asks the gateway, without any front."""

    def __init__(
        self,
        proxy: Proxy,
        era: str,
        capabilities: dict[str, Any] | None = None,
        answers: dict[str, Answer] | None = None,
        principal: str | None = None,
        rights: Principal = THE_USER,
    ) -> None:
        self.proxy, self.era = proxy, Era(era)
        self.rights = rights
        self.session = Session(principal=rights.name, rights=rights) if era == "handshake" else None
        if self.session is not None:
            proxy.gateway.open_session(self.session, self._told)
        self.capabilities: Raw | None = envelope.raw(capabilities or {})
        self.client_info: Raw | None = envelope.raw({"name": "host", "version": "1"})
        self.principal = principal or rights.name
        self.answers = answers or {}
        self.notifications: list[tuple[str, Any]] = []
        """Notifications that belong to requests."""
        self.told: list[tuple[str, Any]] = []
        """Notifications of the session."""
        self.asked: list[tuple[str, Any]] = []
        self.had_task = False
        """True if the latest request did not do without a task."""

    def caller(self, params: envelope.Members) -> Caller:
        return Caller(
            era=self.era,
            session=self.session,
            capabilities=self.capabilities,
            client_info=self.client_info,
            principal=self.principal,
            rights=self.rights,
            notify=self.notify,
            ask=self.ask,
            meta=eras.meta_of(params),
            release=lambda: None,
        )

    async def raw(self, method: str, params: dict[str, Any] | str | None = None) -> str:
        """Ask, and return the result as text."""
        text = params if isinstance(params, str) else json.dumps(params or {})
        try:
            result = await self._in_flight(method, envelope.members(text.encode()))
        except RequestError as error:
            data = json.loads(bytes(error.data)) if isinstance(error.data, Raw) else error.data
            raise RpcError(error.code, error.message, data) from error
        return result.decode()

    async def _in_flight(self, method: str, params: envelope.Members) -> bytes:
        """Ask as fronts do, without a task: what opens a scope has to ask for one."""
        reply, ended = Reply[bytes](), anyio.Event()

        async def handle() -> None:
            try:
                reply.answer(await self.proxy.gateway.handle(method, params, self.caller(params)))
            except Exception as error:
                reply.fail(error)
            finally:
                ended.set()

        async with anyio.create_task_group() as group:
            flight = Flight(group)
            flight.start(handle())
            try:
                await ended.wait()
            finally:
                self.had_task = flight.has_task
                flight.cancel()
        return await reply

    async def request(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Ask, and return the result. Keywords go to `_meta`."""
        full = {**(params or {}).get("_meta", {}), **meta}
        if self.era is Era.MODERN:
            full[PREFIX + "protocolVersion"] = MODERN
            full[PREFIX + "clientCapabilities"] = json.loads(bytes(self.capabilities or Raw(b"{}")))
        return json.loads(await self.raw(method, (params or {}) | ({"_meta": full} if full else {})))

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> Any:
        """Call a tool, and return its result."""
        result = await self.request("tools/call", {"name": name, "arguments": arguments or {}}, **meta)
        # Calls are counted and learned from after their answers are written, before a client's next request.
        await anyio.lowlevel.checkpoint()
        return result

    async def data(self, name: str, arguments: Any = None, **meta: Any) -> dict[str, Any]:
        """Call a tool of the proxy itself as a program does, and return the data."""
        return data_of(await self.call(name, arguments, **AS_DATA, **meta))

    async def names(self, **meta: Any) -> list[str]:
        """The names of the listed tools."""
        return [entry["name"] for entry in (await self.request("tools/list", **meta))["tools"]]

    def notify(self, method: str, params: envelope.Members) -> None:
        self.notifications.append((method, {key: json.loads(bytes(raw)) for key, raw in params.items()}))

    async def _told(self, method: str, params: envelope.Members) -> None:
        self.told.append((method, {key: json.loads(bytes(raw)) for key, raw in params.items()}))

    def leave(self) -> None:
        """End the session."""
        assert self.session is not None
        self.proxy.gateway.end_session(self.session)

    async def ask(self, method: str, params: envelope.Members) -> bytes:
        decoded = {key: json.loads(bytes(raw)) for key, raw in params.items()}
        self.asked.append((method, decoded))
        answer = self.answers.get(method)
        if answer is None:
            raise RequestError(-32601, "Method not found")
        try:
            return json.dumps(answer(decoded)).encode()
        except RpcError as error:
            raise RequestError(error.code, error.message) from error


@cache
def packaged_model() -> object:
    """Keep the packaged model in memory, so that the proxies of this process need not open it each."""
    return load_model()


@asynccontextmanager
async def inside(
    config: Path, *, settled: bool = True, patience: float | None = 2 * PATIENCE
) -> AsyncIterator[Proxy]:
    """The proxy without a front, in this process."""
    packaged_model()
    with anyio.fail_after(patience):
        async with open_proxy(load(config, environ={})) as proxy:
            if settled:
                await proxy.wait_first_connect()
            yield proxy


@asynccontextmanager
async def host_of(
    config: Path,
    era: str,
    capabilities: dict[str, Any] | None = None,
    answers: dict[str, Answer] | None = None,
    *,
    settled: bool = True,
    patience: float | None = 2 * PATIENCE,
    **more: Any,
) -> AsyncIterator[Host]:
    """A client of a proxy of its own, without a front, in this process."""
    async with inside(config, settled=settled, patience=patience) as proxy:
        yield Host(proxy, era, capabilities, answers, **more)


def requests_of(described: dict[str, Any], ids: list[str]) -> list[tuple[str, str, Any]]:
    """Requests for every operation of the API, with every id in the place of each parameter of a path."""
    made = []
    for path, methods in described["paths"].items():
        names = [part for part in path.split("/") if part.startswith("{")]
        for method, operation in methods.items():
            body = None
            if "requestBody" in operation:
                body = {"content": "x", "query": "read the maps", "record": False}
                form = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                known = described["components"]["schemas"][form.rpartition("/")[2]]["properties"]
                body = {key: value for key, value in body.items() if key in known}
            asked = {"query": "read the maps", "older_than_days": "0"}
            known = {one["name"] for one in operation["parameters"]}
            query = "&".join(f"{key}={value}" for key, value in asked.items() if key in known)
            for values in itertools.product(ids, repeat=len(names)):
                concrete = path
                for name, value in zip(names, values, strict=True):
                    concrete = concrete.replace(name, value)
                made.append((method.upper(), f"/api/v1{concrete}?{query}", body))
    return made
