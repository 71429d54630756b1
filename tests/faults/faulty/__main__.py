"""A downstream MCP server that misbehaves on purpose: ``python -S faulty OPTIONS``, standard library only.

OPTIONS is a JSON object: ``mode`` (see `MODES`; over HTTP each has a URL of its own), ``name``, ``era``
(``handshake``, ``modern``, ``both``), ``ledger`` (a file that gets one JSON line for each start, list, call,
reply, cancellation and exit), ``http`` (serve on a loopback port, printed first), ``modes`` (only print
their names, with their stages and whether they are there over HTTP), ``tools`` and
``page_size``, and what a mode asks for: ``delay`` (seconds), ``size`` (bytes), ``after`` (listings or calls
that go well first), ``once_file`` (the fault happens once, also across restarts), ``rate``, ``depth``,
``canary_url``. The tool ``safe`` is answered well in every mode.
"""

import json
import os
import sys

from calls import CALLS
from definitions import DEFINITIONS
from healthy import Healthy, serve_stdio
from life import LIFE
from replies import REPLIES

MODES = {mode.mode: mode for mode in (Healthy, *LIFE, *DEFINITIONS, *CALLS, *REPLIES)}


def main():
    options = json.loads(sys.argv[1])
    if options.get("modes"):
        print(json.dumps({name: [mode.stage, mode.http] for name, mode in MODES.items()}), flush=True)
    elif options.get("http"):
        from twin import serve_http

        serve_http({name: mode(options | {"mode": name}) for name, mode in MODES.items() if mode.http})
    else:
        serve_stdio(MODES[options["mode"]](options))
    os._exit(0)


if __name__ == "__main__":
    main()
