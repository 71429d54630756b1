"""Every front in every era, as a module's tests meet them one after the other."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from support.proxies import HttpProxy, command, real_command
from support.raw_client import RawClient
from support.wires import http, sse, stdio

FRONTS = ("stdio", "http", "sse")
ERAS = ("handshake", "modern")

EVERY_FRONT: dict[str, Any] = {
    "scope": "module",
    "params": [(front, era) for front in FRONTS for era in ERAS],
    "ids": [f"{front}-{era}" for front in FRONTS for era in ERAS],
}
"""Options of a fixture that opens a client with `opening`."""

EVERY_FRONT_AND_REPLICAS: dict[str, Any] = EVERY_FRONT | {
    "params": [
        *EVERY_FRONT["params"],
        *(
            pytest.param((front, era), marks=pytest.mark.cluster)
            for front, era in (*(("replicas", era) for era in ERAS), ("replicas-sse", "handshake"))
        ),
    ],
    "ids": [*EVERY_FRONT["ids"], *(f"replicas-{era}" for era in ERAS), "replicas-sse"],
}
"""The same, with a balancer before several replicas, which gives each request to the next one."""


def opening(
    request: pytest.FixtureRequest, *, real: bool = False, **told: Any
) -> AbstractAsyncContextManager[RawClient]:
    """A client of the front and era that is asked for, which says these things of itself.

    The module's fixture ``setup`` has the configuration second, ``served`` is a proxy over HTTP, and
    ``replicas`` the URL of a balancer.
    """
    front, era = request.param
    if front.startswith("replicas"):
        connect = sse if front == "replicas-sse" else http
        return connect(request.getfixturevalue("replicas"), era, **told)
    if front == "stdio":
        start = real_command if real else command
        return stdio(start(request.getfixturevalue("setup")[1]), era, **told)
    served: HttpProxy = request.getfixturevalue("served")
    return http(served.base, era, **told) if front == "http" else sse(served.base, era, **told)
