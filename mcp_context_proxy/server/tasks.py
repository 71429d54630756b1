"""Tasks: calls that go on after their first answer, and whose results are asked for later.

A modern server decides call by call whether it answers with a task, if the client declares that it takes
tasks. Such a client polls by itself. It knows each task by an id of the proxy, which leads to the server that
runs it, and nobody else can use that id. What it gets in the end is counted, shortened and marked as the
result of an ordinary call is.

No other client, and none of the handshake era, sees a task. Where a tool runs as a task only, the proxy waits
for the result in its place (`forwarding`).
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Raw, Struct, field

from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import BadAnswerError, InputMissingError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, METHOD_NOT_FOUND, Members, RequestError
from mcp_context_proxy.protocol.eras import MODERN, TASKS_EXTENSION
from mcp_context_proxy.protocol.strangers import named
from mcp_context_proxy.server import Caller, questions
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors, task_id_in
from mcp_context_proxy.system import drop_of_largest
from mcp_context_proxy.system.threads import in_thread_if
from mcp_context_proxy.trust import Principal

TASKS_KEPT: Final = 1_000
"""Tasks of all clients that are known; the oldest of whoever has most are forgotten first."""

ID_BYTES: Final = 18
"""Random bytes in the id of a task: whoever has it could read the result."""

Finish = Callable[[bytes, bool], Awaitable[bytes]]
"""Returns the result of an ended task as its client gets it; told whether it comes for the first time."""


class _Task(Struct, kw_only=True):
    """A task of a server, for the client whose call has become it."""

    server: str
    own_id: str
    principal: str | None
    rights: Principal
    subject: str
    finish: Finish
    ended: bool = False
    asked: set[str] = field(default_factory=set)
    """Keys of its questions so far."""


class Tasks:
    """The tasks of modern clients that take them: ``tasks/get``, ``tasks/update`` and ``tasks/cancel``."""

    def __init__(self, fleet: Fleet, forwarder: Forwarder) -> None:
        self._fleet, self._forwarder = fleet, forwarder
        self.prefix = ""
        """Beginning of each id: the replica at which the call was made, where there are several."""
        self._known: dict[str, _Task] = {}

    def begun(self, server: str, result: bytes, caller: Caller, subject: str, finish: Finish) -> bytes:
        """Return the result by which a call becomes a task, with the id under which the client finds it.

        Raises `BadAnswerError` if the client did not declare that it takes tasks, or the task has no id, or a
        long one.
        """
        if len(result) > envelope.TAKEN_APART_BYTES:
            raise BadAnswerError(server, f"with a task of {len(result):,} bytes")
        parts = envelope.members(result)
        if caller.era is not MODERN or not eras.has_extension(caller.capabilities, TASKS_EXTENSION):
            raise BadAnswerError(server, "with a result of type 'task', which the client does not take")
        task_id = self.prefix + secrets.token_urlsafe(ID_BYTES)
        self._known[task_id] = _Task(
            server=server,
            own_id=task_id_in(server, parts),
            principal=caller.principal,
            rights=caller.rights,
            subject=f"the task of {subject}",
            finish=finish,
        )
        drop_of_largest(self._known, TASKS_KEPT, lambda key: self._known[key].rights.person)
        shown = self._fleet.clients[server].shown_state(parts)
        return envelope.encode({**shown, "taskId": envelope.raw(task_id)})

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/get``: the state of a task, with its result, or its questions to the client."""
        task = self._of("tasks/get", params, caller)
        result = await self._forward(task, "tasks/get", params, caller)
        server = self._fleet.clients[task.server]
        with downstream_errors(caller.era):
            parts, required = await questions.requests_in(task.server, result, server.limits, of_task=True)
            if required is not None:
                if len(task.asked | required.keys()) > server.limits.questions_per_call:
                    raise InputMissingError(task.server, "it asked too many times")
                task.asked |= required.keys()
                checked = await questions.checked_requests(server, parts, required, caller)
                parts = envelope.members(checked)
        large = len(result) > envelope.TAKEN_APART_BYTES
        parts = await in_thread_if(large, server.shown_state, parts)
        parts["taskId"] = params["taskId"]
        status = envelope.text(parts.get("status"))
        first, task.ended = not task.ended, task.ended or status in ("completed", "failed", "cancelled")
        if status == "completed" and envelope.starts_with(parts.get("result", b""), b"{"):
            parts["result"] = Raw(await task.finish(bytes(parts["result"]), first))
        elif status in ("failed", "cancelled") and first:
            await task.finish(envelope.encode({"content": [], "isError": True}), first)
        if envelope.starts_with(parts.get("error", b""), b"{"):
            error = envelope.members(parts["error"])
            error["message"] = envelope.raw(named(task.server, envelope.text(error.get("message")) or ""))
            parts["error"] = envelope.raw(error)
        return await in_thread_if(large, envelope.encode, parts)

    async def update(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/update``: the answers of the client to the questions of a task."""
        task = self._of("tasks/update", params, caller)
        return await self._forward(task, "tasks/update", params, caller)

    async def cancel(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/cancel``."""
        task = self._of("tasks/cancel", params, caller)
        return await self._forward(task, "tasks/cancel", params, caller)

    def _of(self, method: str, params: Members, caller: Caller) -> _Task:
        if caller.era is not MODERN:
            raise RequestError(METHOD_NOT_FOUND, "Method not found", method)
        if not eras.has_extension(caller.capabilities, TASKS_EXTENSION):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise RequestError(eras.MISSING_CAPABILITY, f"{method} needs a client that takes tasks", needed)
        task = self._known.get(envelope.text(params["taskId"]) or "")
        # The id of another's task is as unknown as one that was never given.
        if (
            task is None
            or task.principal != caller.principal
            or task.server not in self._fleet.clients
            or not caller.rights.reaches(task.server)
        ):
            raise RequestError(INVALID_PARAMS, "unknown task: it was never begun here, or is forgotten")
        return task

    async def _forward(self, task: _Task, method: str, params: Members, caller: Caller) -> bytes:
        sent = {**params, "taskId": envelope.raw(task.own_id)}
        with downstream_errors(caller.era):
            return await self._forwarder.forward(
                self._fleet.clients[task.server], method, sent, caller, task.subject
            )
