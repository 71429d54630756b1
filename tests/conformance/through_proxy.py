"""The client under test: the SDK's conformance client, with the proxy between it and the suite's server.

Usage, as the suite calls it: ``through_proxy.py SDK_CLIENT URL``.
"""

from __future__ import annotations

import subprocess
import sys

from processes import proxy


def main() -> int:
    client, url = sys.argv[1:]
    with proxy({"suite": {"url": url}}) as address:
        return subprocess.run([sys.executable, client, address], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
