"""A downstream MCP server that misbehaves on purpose: ``python -S faulty OPTIONS``, standard library only.

OPTIONS is a JSON object: ``mode`` (see `MODES`; over HTTP each has a URL of its own), ``name``, ``era``
(``handshake``, ``modern``, ``both``), ``ledger`` (a file that gets one JSON line for each start, list, call
and cancellation), ``http`` (serve on a loopback port, printed first), ``modes`` (only print their names, with
their stages and True where they exist over HTTP), ``tools`` and ``page_size``, and options of the modes:
``delay`` (seconds), ``size`` (bytes), ``after`` (listings or calls that go well first), ``once_file`` (the
fault happens once, also across restarts), ``rate``, ``depth``, ``canary_url``. The tool ``safe`` is answered
well in every mode.
"""

import json
import os
import sys
from os.path import abspath, dirname

sys.path.append(dirname(dirname(dirname(abspath(__file__)))))  # pathlib starts slower
sys.path.append(dirname(sys.path[-1]))

import calls  # noqa: F401 - each of these modules adds its modes
import definitions  # noqa: F401
import floods  # noqa: F401
import life  # noqa: F401
import replies  # noqa: F401
from server import MODES


def main():
    options = json.loads(sys.argv[1])
    if options.get("modes"):
        print(json.dumps({name: [mode.stage, mode.http] for name, mode in MODES.items()}), flush=True)
    elif options.get("http"):
        from support.stub_http import Handler, HttpServer

        stubs = {name: mode(options) for name, mode in MODES.items() if mode.http}
        stubs["normal"].note("start", environment=sorted(os.environ), argv=sys.argv)
        HttpServer(Handler, "", stubs)
    else:
        faulty = MODES[options["mode"]](options)
        faulty.serve()
        faulty.end()
    os._exit(0)


if __name__ == "__main__":
    main()
