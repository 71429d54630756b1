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
from mcp_context_proxy.errors import BadAnswerError, DownstreamError, InputMissingError
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, METHOD_NOT_FOUND, Members, RequestError
from mcp_context_proxy.protocol.eras import HANDSHAKE, MODERN, TASKS_EXTENSION
from mcp_context_proxy.protocol.strangers import named
from mcp_context_proxy.server import Caller, questions
from mcp_context_proxy.server.forwarding import (
    ASKED_BY_RESULT,
    Forwarder,
    downstream_errors,
    task_id_in,
    task_state,
)
from mcp_context_proxy.system import drop_of_largest
from mcp_context_proxy.system.threads import in_thread_if
from mcp_context_proxy.trust import Principal

TASKS_KEPT: Final = 1_000
"""Tasks of all clients that are known; the oldest of whoever has most are forgotten first."""

ID_BYTES: Final = 18
"""Random bytes in the id of a task: whoever has it could read the result."""

_TAKEN: Final = b'{"resultType":"complete"}'
_FAILED: Final = b'{"content":[],"isError":true}'

Finish = Callable[[bytes, bool], Awaitable[bytes]]
"""Returns the result of an ended task as its client gets it; told whether it comes for the first time."""


class _Task(Struct, kw_only=True):
    """A task of a server, for the client whose call has become it."""

    tool: Tool
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

    async def begun(self, tool: Tool, result: bytes, caller: Caller, subject: str, finish: Finish) -> bytes:
        """Return the result by which a call becomes a task, with the id under which the client finds it.

        Raises `DownstreamError` if the client did not declare that it takes tasks, or the task cannot be
        understood.
        """
        client = self._fleet.clients[tool.server]
        try:
            takes = caller.era is MODERN and eras.has_extension(caller.capabilities, TASKS_EXTENSION)
            if not takes or client.era is not MODERN:
                raise BadAnswerError(client.name, "with a result of type 'task', which cannot be taken here")
            parts, _ = await task_state(client, result, begins=True)
            own_id = task_id_in(client.name, parts)
        except DownstreamError:
            await finish(_FAILED, True)
            raise
        task_id = self.prefix + secrets.token_urlsafe(ID_BYTES)
        self._known[task_id] = _Task(
            tool=tool,
            own_id=own_id,
            principal=caller.principal,
            rights=caller.rights,
            subject=f"the task of {subject}",
            finish=finish,
        )
        drop_of_largest(self._known, TASKS_KEPT, lambda key: self._known[key].rights.person)
        client.note_task(own_id)
        return envelope.encode({**parts, "taskId": envelope.raw(task_id)})

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/get``: the state of a task, with its result, or its questions to the client."""
        task = self._of("tasks/get", params, caller)
        client = self._fleet.clients[task.tool.server]
        result = await self._forward(task, "tasks/get", params, caller)
        with downstream_errors(caller.era):
            try:
                parts, required = await task_state(client, result)
            except BadAnswerError:
                await self._end(task, _FAILED)
                raise
            if required is not None:
                if len(task.asked | required.keys()) > client.limits.questions_per_call:
                    raise InputMissingError(client.name, "it asked too many times")
                new = required.keys() - task.asked
                task.asked |= new
                checked = await questions.checked_requests(client, parts, required, caller)
                for key in new:
                    method = envelope.text(required[key][0]["method"]) or ""
                    self._forwarder.note_question(caller, client.name, "tasks/get", method, ASKED_BY_RESULT)
                parts = envelope.members(checked)
        status = envelope.text(parts["status"])
        client.note_task(task.own_id, ended=status not in ("working", "input_required"))
        if status == "completed":
            parts["result"] = Raw(await self._end(task, bytes(parts["result"])))
        elif status in ("failed", "cancelled"):
            await self._end(task, _FAILED)
        if envelope.starts_with(parts.get("error", b""), b"{"):
            error = envelope.members(parts["error"])
            error["message"] = envelope.raw(named(client.name, envelope.text(error.get("message")) or ""))
            parts["error"] = envelope.raw(error)
        parts |= {"taskId": params["taskId"], "resultType": Raw(b'"complete"')}
        return await in_thread_if(len(result) > envelope.TAKEN_APART_BYTES, envelope.encode, parts)

    async def _end(self, task: _Task, result: bytes) -> bytes:
        first, task.ended = not task.ended, True
        return await task.finish(result, first)

    async def update(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/update``: the answers of the client to the questions of a task."""
        await self._forward(self._of("tasks/update", params, caller), "tasks/update", params, caller)
        return _TAKEN

    async def cancel(self, params: Members, caller: Caller) -> bytes:
        """Answer ``tasks/cancel``."""
        task = self._of("tasks/cancel", params, caller)
        await self._forward(task, "tasks/cancel", params, caller)
        # It is not counted, as no other call is that its client cancels.
        task.ended = True
        self._fleet.clients[task.tool.server].note_task(task.own_id, ended=True)
        return _TAKEN

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
            or (client := self._fleet.clients.get(task.tool.server)) is None
            or client.era is HANDSHAKE
            or not caller.rights.may_call(task.tool)
        ):
            raise RequestError(INVALID_PARAMS, "unknown task: it was never begun here, or is forgotten")
        return task

    async def _forward(self, task: _Task, method: str, params: Members, caller: Caller) -> bytes:
        # No other member, which some servers would take for the id.
        sent: Members = {name: params[name] for name in ("inputResponses", "_meta") if name in params}
        sent["taskId"] = envelope.raw(task.own_id)
        with downstream_errors(caller.era):
            return await self._forwarder.forward(
                self._fleet.clients[task.tool.server], method, sent, caller, task.subject
            )
