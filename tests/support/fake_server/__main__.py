"""A downstream MCP server whose behaviour is data: run as a child process, standard library only.

``python -I -S fake_server/__main__.py SPEC.json [--http|--sse]``. The specification is one JSON object:

* ``name``, ``version``, ``instructions``: the server's description of itself.
* ``era``: ``handshake`` (default), ``modern`` or ``both``.
* ``ledger``: a file that gets one JSON line for each start, received line and executed call.
* ``tools``, ``resources``, ``templates``, ``prompts``: the lists, verbatim. ``tools_file``: a JSON file with
  a ``tools`` member. ``page_size``: entries on a page.
* ``skills``: entries of skills; ``unlisted_skills``: those that only ``skills/get`` tells; ``files``: the
  texts of resources by URI.
* ``capabilities``: replaces the capabilities that the lists imply.
* ``at_start``: steps before anything is read, such as ``{"stderr": "..."}`` and ``{"exit": 3}``.
* ``on``: steps for a method, such as ``{"initialize": [{"wait": "FILE"}]}``.
* ``calls``: steps for a tool call, by tool name; ``*`` for all others. Without any, a call is answered with
  its own params as text.
* ``forgets``: a file; once it exists, HTTP sessions that were opened before are not found.
* ``after_initialized``: steps once the handshake is over, or after ``server/discover``.
* ``asks_first``: requests to the client, sent before the server reads anything that follows the handshake.

A list of steps runs in order, in a thread of its own; when it ends without an answer, the answer of a plain
server follows. The steps are the functions named ``step_*`` in `steps`.
"""

import json
import sys
from os.path import abspath, dirname

sys.path.append(dirname(abspath(__file__)))  # pathlib starts slower
sys.path.append(dirname(dirname(sys.path[-1])))
sys.path.append(dirname(sys.path[-1]))

from server import Fake


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    if "--http" in sys.argv or "--sse" in sys.argv:
        from support.stub_http import Handler, HttpServer, SseHandler

        if "--http" in sys.argv:
            HttpServer(Handler, "/mcp", {"mcp": Fake(spec)})
        HttpServer(SseHandler, "/sse", {}, lambda: Fake(spec))
    fake = Fake(spec)
    fake.serve(lambda request: fake.apart(fake.answer, request))


if __name__ == "__main__":
    main()
