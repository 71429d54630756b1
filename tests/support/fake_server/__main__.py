"""A downstream MCP server whose behaviour is data: run as a child process, standard library only.

``python -I -S fake_server SPEC.json [--http|--sse]``. The specification is one JSON object:

* ``name``, ``version``, ``instructions``: what the server says of itself.
* ``era``: ``handshake`` (default), ``modern`` or ``both``.
* ``ledger``: a file that gets one JSON line for each start, received line, and call that was run.
* ``tools``, ``resources``, ``templates``, ``prompts``: the lists, verbatim. ``tools_file``: a JSON file with
  a ``tools`` member. ``page_size``: entries on a page.
* ``capabilities``: instead of those that the lists imply.
* ``at_start``: steps before anything is read, such as ``{"stderr": "..."}`` and ``{"exit": 3}``.
* ``on``: steps for a method, such as ``{"initialize": [{"wait": "FILE"}]}``.
* ``calls``: steps for a tool call, by tool name; ``*`` for all others. Without any, a call is answered with
  its own params as text.
* ``forgets``: a file; once it is there, HTTP sessions that were opened before are not found.
* ``after_initialized``: steps once the handshake is over, or after `server/discover`.
* ``asks_first``: requests of the client that are made before anything that follows the handshake is read.

A list of steps runs in order, in a thread of its own; when it ends without an answer, the answer the server
would have given follows. The steps are the functions named ``step_*`` in `steps`.
"""

import json
import sys

from fronts import serve_http, serve_sse, serve_stdio
from server import Server


def main():
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        spec = json.load(file)
    if "--sse" in sys.argv:
        serve_sse(spec)
    (serve_http if "--http" in sys.argv else serve_stdio)(Server(spec))


if __name__ == "__main__":
    main()
