"""Runs an example server: ``python -m mcp_context_proxy.examples notes``."""

import sys

from mcp_context_proxy.examples import SERVERS
from mcp_context_proxy.examples.functions import server

if sys.argv[1:2] == [] or sys.argv[1] not in SERVERS:
    sys.exit(f"name one of the servers: {', '.join(SERVERS)}")
server(sys.argv[1]).run()
