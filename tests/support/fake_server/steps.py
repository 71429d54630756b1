"""Steps: functions of a request and the step's value. A result that is not None answers the request."""

import json
import os
import signal
import time

from mcp_context_proxy.examples import NoResponse, RpcError


def step_result(request, value):
    return json.loads(json.dumps(value))


def step_raw_result(request, value):
    """Write a result, given as JSON text, as it is."""
    line = '{"jsonrpc":"2.0","id":' + json.dumps(request.id) + ',"result":' + value + "}"
    request.channel.line(line.encode())
    raise NoResponse


def step_raw_result_in(request, value):
    """Write a result, which a file has as JSON text, as it is."""
    with open(value, encoding="utf-8") as file:
        step_raw_result(request, file.read())


def step_raw(request, value):
    """Write a line as it is, with ID replaced by the id of the request, and go on."""
    request.channel.line(value.replace("ID", json.dumps(request.id)).encode())


def step_hex(request, value):
    """Write bytes as they are, without a line end, and go on."""
    request.channel.write(bytes.fromhex(value).replace(b"ID", json.dumps(request.id).encode()))


def step_error(request, value):
    raise RpcError(value.get("code", -32603), value.get("message", "failed"), value.get("data"))


def step_silent(request, value):
    raise NoResponse


step_answered = step_silent


def step_large(request, value):
    """Answer with a text of that many characters."""
    return {"content": [{"type": "text", "text": "x" * value}]}


def step_nested(request, value):
    """Answer with a result nested that deeply."""
    step_raw_result(request, '{"content":[],"structuredContent":{"deep":' + "[" * value + "]" * value + "}}")


def step_exit(request, value):
    os._exit(value)


def step_kill(request, value):
    os.kill(os.getpid(), value)
    time.sleep(1)  # it may reach another thread first, and this one would still answer


def step_stderr(request, value):
    os.write(2, value.encode() + b"\n")


def step_wait(request, value):
    """Wait until a file is there."""
    while not os.path.exists(value):
        time.sleep(0.005)


def step_wait_cancelled(request, value):
    request.cancelled.wait()
    note_cancelled(request)


def note_cancelled(request):
    subject = request.params.get("name") if request.method == "tools/call" else request.method
    request.server.note("cancelled", tool=subject)
    raise NoResponse


def step_once(request, value):
    """Run these steps only if the named file is not there yet, and make it."""
    path, steps = value
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return None
    return request.server.run_steps(request, steps)


def step_if(request, value):
    """Run these steps only if the named file is there."""
    path, steps = value
    return request.server.run_steps(request, steps) if os.path.exists(path) else None


def step_progress(request, value):
    """Send progress notifications, up to a number or one for each of a list, if the client asked for them."""
    numbers, total = (value, None) if isinstance(value, list) else (range(1, value + 1), value)
    for number in numbers:
        request.progress(number, total, f"step {number}")


def step_notify(request, value):
    """Send a notification on the stream of this request."""
    request.notify(value["method"], value.get("params", {}))


def step_announce(request, value):
    request.server.announce(value["method"], value.get("params", {}))


def step_set(request, value):
    """Replace lists, and say so."""
    for name, entries in value.items():
        request.server.lists[name] = entries
        kind = "resources" if name == "templates" else name
        request.server.announce(f"notifications/{kind}/list_changed", {})


def step_ask(request, value):
    """Send the client a request; the response is the text of the result."""
    response = wait_for(request, ask(request, value))
    text = json.dumps(response.get("result", response.get("error")))
    return {"content": [{"type": "text", "text": text}], "isError": "error" in response}


def step_ask_each(request, value):
    """Send several requests, one after the other; the responses are the text of the result."""
    return results(wait_for(request, ask(request, each)) for each in value)


def step_ask_together(request, value):
    """Send several requests before any is answered."""
    return results([wait_for(request, answers) for answers in [ask(request, each) for each in value]])


def step_ask_then(request, value):
    """Send a request, wait for the response, and go on."""
    wait_for(request, ask(request, value))


def step_heard(request, value):
    """Answer with the responses of the client so far."""
    return results(answers[0] for answers in request.server.questions.values() if answers)


def step_ask_in_vain(request, value):
    """Send a request and withdraw it, once a file is there if one is named."""
    ask(request, value)
    if "until" in value:
        step_wait(request, value["until"])
    request.notify("notifications/cancelled", {"requestId": [*request.server.questions][-1]})


def ask(request, value):
    answers = request.server.ask(request.channel, value["method"], value.get("params", {}))
    request.server.note("asking", method=value["method"])
    return answers


def wait_for(request, answers):
    while not answers:
        if request.cancelled.wait(0.002):
            note_cancelled(request)
    request.server.note("asked", answer=answers[0])
    return answers[0]


def results(responses):
    text = json.dumps([response.get("result") for response in responses])
    return {"content": [{"type": "text", "text": text}]}


def step_pid(request, value):
    """Answer with the process id."""
    return {"content": [{"type": "text", "text": str(os.getpid())}]}


def step_need_input(request, value):
    """Ask by ``input_required`` (modern era); the answers of the retry are the text of the result."""
    answers = request.params.get("inputResponses")
    if answers is None:
        return {"resultType": "input_required"} | value
    text = json.dumps({"answers": answers, "state": request.params.get("requestState")})
    return {"content": [{"type": "text", "text": text}]}


def step_spawn(request, value):
    request.server.spawn()


def step_ignore_end(request, value):
    """Survive the end of input and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    request.server.spec["ignore_eof"] = True


STEPS = {name.removeprefix("step_"): made for name, made in globals().items() if name.startswith("step_")}
