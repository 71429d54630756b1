"""A modern server on standard streams with the tools that the suite's scenarios of tasks call.

``greet`` answers at once, and every other tool becomes a task if the client takes tasks.
"""

import json
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
from support.stub import Stub

from mcp_context_proxy.examples import CAPABILITIES_KEY, INVALID_PARAMS, META, Request, RpcError

TASKS = f"{META}tasks"
NEEDED = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
TASK_ONLY = ("failing_job", "test_tool_with_task")
QUESTIONS = {"confirm_delete": ("confirm",), "multi_input": ("first", "second")}
"""Fields that a tool asks for while it is a task; it goes on once all are answered."""
TOOLS = ("greet", "slow_compute", "protocol_error_job", *TASK_ONLY, *QUESTIONS)
MOMENT = 0.3
"""Seconds for which a task works that has nothing to wait for."""


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def question(field: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    form = {"mode": "form", "message": f"What is the {field}?", "requestedSchema": schema}
    return {"method": "elicitation/create", "params": form}


class TaskServer(Stub):
    """A server whose tasks are in memory."""

    era = "modern"

    def __init__(self) -> None:
        super().__init__("tasks")
        self.tasks: dict[str, dict[str, Any]] = {}
        self.changing = threading.Lock()
        for method in ("get", "update", "cancel"):
            self.handlers[f"tasks/{method}"] = getattr(self, method)

    def capabilities(self) -> dict[str, Any]:
        return {"tools": {}, "extensions": {TASKS: {}}}

    def tools(self) -> list[dict[str, Any]]:
        return [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in TOOLS]

    def call(self, request: Request) -> dict[str, Any]:
        name, arguments = request.params["name"], request.params.get("arguments", {})
        if name == "greet":
            return text(f"Hello, {arguments['name']}!")
        if not takes_tasks(request):
            if name in TASK_ONLY:
                raise RpcError(-32021, "Missing required client capability", NEEDED)
            time.sleep(arguments.get("seconds", 0))
            return text("done")
        answers = request.params.get("inputResponses")
        if name == "test_tool_with_task" and answers is None:
            asked = {"user_name": question("name")}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": "asked"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        task = {"taskId": str(uuid.uuid4()), "status": "working", "createdAt": now, "lastUpdatedAt": now}
        task |= {"ttlMs": 3_600_000, "pollIntervalMs": 100}
        begun = task | {"resultType": "task"}
        self.tasks[task["taskId"]] = task
        if name in QUESTIONS:
            asked = {field: question(field) for field in QUESTIONS[name]}
            task |= {"status": "input_required", "inputRequests": asked}
        elif name == "protocol_error_job":
            self.later(MOMENT, task, status="failed", error={"code": -32603, "message": "it broke"})
        else:
            said = text(json.dumps(answers), isError=name == "failing_job")
            self.later(arguments.get("seconds", MOMENT), task, status="completed", result=said)
        return begun

    def later(self, seconds: float, task: dict[str, Any], **end: Any) -> None:
        threading.Timer(seconds, self.end, [task], end).start()

    def end(self, task: dict[str, Any], **end: Any) -> None:
        with self.changing:
            if task["status"] in ("working", "input_required"):
                task |= end

    def get(self, request: Request) -> dict[str, Any]:
        return self.task_of(request)

    def cancel(self, request: Request) -> dict[str, Any]:  # type: ignore[override]
        task = self.task_of(request)
        task.pop("inputRequests", None)
        self.end(task, status="cancelled")
        return {}

    def update(self, request: Request) -> dict[str, Any]:
        task = self.task_of(request)
        open_questions = task.get("inputRequests", {})
        for field in request.params["inputResponses"]:
            open_questions.pop(field, None)
        if task["status"] == "input_required" and not open_questions:
            del task["inputRequests"]
            task["status"] = "working"
            self.later(MOMENT, task, status="completed", result=text("all answered"))
        return {}

    def task_of(self, request: Request) -> dict[str, Any]:
        if not takes_tasks(request):
            raise RpcError(-32021, "Missing required client capability", NEEDED)
        if (task := self.tasks.get(request.params["taskId"])) is None:
            raise RpcError(INVALID_PARAMS, "no such task")
        return task


def takes_tasks(request: Request) -> bool:
    return TASKS in request.meta.get(CAPABILITIES_KEY, {}).get("extensions", {})


if __name__ == "__main__":
    server = TaskServer()
    server.serve(lambda request: server.apart(server.answer, request))
