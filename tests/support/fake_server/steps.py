"""Steps. Each takes the exchange and its value; a result that is not None answers the request."""

import json
import os
import select
import signal
import socket
import time

from exchange import AnsweredError, RefusedError, SilentError


def step_result(exchange, value):
    return json.loads(json.dumps(value))


def step_raw_result(exchange, value):
    """A result as JSON text, written as it is."""
    exchange.write(
        '{"jsonrpc":"2.0","id":' + json.dumps(exchange.id) + ',"result":' + value + "}",
    )
    raise AnsweredError


def step_raw(exchange, value):
    """Write a line as it is, with ID replaced by the id of the request; goes on."""
    exchange.write(value.replace("ID", json.dumps(exchange.id)))


def step_hex(exchange, value):
    """Write bytes as they are, without a line end; goes on."""
    exchange.write(bytes.fromhex(value).replace(b"ID", json.dumps(exchange.id).encode()), end=b"")


def step_error(exchange, value):
    raise RefusedError(value.get("code", -32603), value.get("message", "failed"), value.get("data"))


def step_silent(exchange, value):
    raise SilentError


def step_answered(exchange, value):
    raise AnsweredError


def step_large(exchange, value):
    """A result whose text has that many characters."""
    return {"content": [{"type": "text", "text": "x" * value}]}


def step_nested(exchange, value):
    """A result nested that deeply."""
    step_raw_result(exchange, '{"content":[],"structuredContent":{"deep":' + "[" * value + "]" * value + "}}")


def step_exit(exchange, value):
    os._exit(value)


def step_kill(exchange, value):
    os.kill(os.getpid(), value)


def step_stderr(exchange, value):
    os.write(2, value.encode() + b"\n")


def step_wait(exchange, value):
    """Wait until a file is there."""
    while not os.path.exists(value):  # noqa: PTH110
        time.sleep(0.005)


def step_wait_cancelled(exchange, value):
    while not exchange.cancelled.wait(0.02):
        if connection_closed(exchange):
            break
    exchange.server.note(event="cancelled", tool=exchange.subject())
    raise SilentError


def connection_closed(exchange):
    """Over HTTP, a modern client cancels by closing the connection."""
    handler = getattr(exchange.write, "__self__", None)
    if handler is None:
        return False
    readable = select.select([handler.connection], [], [], 0)[0]
    return bool(readable) and handler.connection.recv(1, socket.MSG_PEEK) == b""


def step_once(exchange, value):
    """Run these steps only if the named file is not there yet, and make it."""
    path, steps = value
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return None
    return exchange.server.run_steps(exchange, steps)


def step_if(exchange, value):
    """Run these steps only if the named file is there."""
    path, steps = value
    return exchange.server.run_steps(exchange, steps) if os.path.exists(path) else None  # noqa: PTH110


def step_progress(exchange, value):
    """Progress notifications with the token that came, if one did: up to a number, or a list of them."""
    token = exchange.meta.get("progressToken")
    numbers, total = (value, None) if isinstance(value, list) else (range(1, value + 1), value)
    for number in numbers:
        if token is not None:
            params = {"progressToken": token, "progress": number, "total": total, "message": f"step {number}"}
            exchange.notify("notifications/progress", params)


def step_notify(exchange, value):
    """A notification on the stream of this request."""
    exchange.notify(value["method"], value.get("params", {}))


def step_announce(exchange, value):
    exchange.server.announce(exchange, value["method"], value.get("params", {}))


def step_set(exchange, value):
    """Replace lists, and say so."""
    for name, entries in value.items():
        exchange.server.lists[name] = entries
        kind = "resources" if name == "templates" else name
        exchange.server.announce(exchange, f"notifications/{kind}/list_changed", {})


def step_ask(exchange, value):
    """Make a request of the client; the answer is the text of the result."""
    answer = await_answer(exchange, send_question(exchange, value))
    text = json.dumps(answer.get("result", answer.get("error")))
    return {"content": [{"type": "text", "text": text}], "isError": "error" in answer}


def step_ask_each(exchange, value):
    """Make several requests, one after the other; the answers are the text of the result."""
    answers = [await_answer(exchange, send_question(exchange, each)) for each in value]
    return {"content": [{"type": "text", "text": json.dumps([each.get("result") for each in answers])}]}


def step_ask_together(exchange, value):
    """Make several requests before any is answered."""
    slots = [send_question(exchange, each) for each in value]
    answers = [await_answer(exchange, slot) for slot in slots]
    return {"content": [{"type": "text", "text": json.dumps([each.get("result") for each in answers])}]}


def step_ask_then(exchange, value):
    """Make a request, wait for the answer, and go on."""
    await_answer(exchange, send_question(exchange, value))


def step_heard(exchange, value):
    """What has been answered so far, as the text of the result."""
    heard = [slot[0].get("result") for slot in exchange.server.asked.values() if slot]
    return {"content": [{"type": "text", "text": json.dumps(heard)}]}


def step_ask_in_vain(exchange, value):
    """Make a request and withdraw it."""
    send_question(exchange, value)
    exchange.notify("notifications/cancelled", {"requestId": f"fake-{exchange.server.asks}"})


def send_question(exchange, value):
    server = exchange.server
    with server.lock:
        server.asks += 1
        request_id = f"fake-{server.asks}"
        slot = server.asked[request_id] = []
    request = {"jsonrpc": "2.0", "id": request_id, "method": value["method"]}
    exchange.write(json.dumps(request | {"params": value.get("params", {})}))
    server.note(event="asking", method=value["method"])
    return slot


def await_answer(exchange, slot):
    while not slot:
        if exchange.cancelled.is_set():
            exchange.server.note(event="cancelled", tool=exchange.subject())
            raise SilentError
        time.sleep(0.002)
    exchange.server.note(event="asked", answer=slot[0])
    return slot[0]


def step_pid(exchange, value):
    """Which process this is, as the text of the result."""
    return {"content": [{"type": "text", "text": str(os.getpid())}]}


def step_need_input(exchange, value):
    """Modern: ask by `input_required` until the retry brings answers; they are the text of the result."""
    answers = exchange.params.get("inputResponses")
    if answers is None:
        return {"resultType": "input_required"} | value
    text = json.dumps({"answers": answers, "state": exchange.params.get("requestState")})
    return {"content": [{"type": "text", "text": text}]}


def step_spawn(exchange, value):
    """Start a child that outlives its parent unless its group is killed."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    exchange.server.note(event="spawned", child=pid)


def step_ignore_end(exchange, value):
    """Survive the end of input and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exchange.server.spec["ignore_eof"] = True


STEPS = {name.removeprefix("step_"): made for name, made in globals().items() if name.startswith("step_")}
