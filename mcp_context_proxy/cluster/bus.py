"""Hints between replicas: what a server has announced to one of them, the others hear as well.

A hint may be lost and decides nothing. One about a list has the others list again; one about a resource is
passed to their clients, unless the server has just announced the same there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from math import inf
from typing import Final

import msgspec
from msgspec import Struct

from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.store.hints import ChangeHints

logger = logging.getLogger(__name__)

SAME_SECONDS: Final = 2.0
"""Time after an announcement of a server here in which that of another replica is taken for the same one."""

ANNOUNCED_KEPT: Final = 1024
"""Resources whose latest announcement is remembered."""


class _Hint(Struct, array_like=True):
    server: str
    uri: str | None = None


_encode, _decode = msgspec.json.encode, msgspec.json.Decoder(_Hint).decode


class Bus:
    """Tells and hears what servers announce."""

    def __init__(self, hints: ChangeHints, changes: ChangeNotifier, fleet: Fleet) -> None:
        """Connect `changes` with the hints; call within the event loop."""
        self._hints, self._changes, self._fleet = hints, changes, fleet
        self._announced: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._loop, self._begun = asyncio.get_running_loop(), False
        changes.elsewhere = self._tell
        hints.heard = self._heard

    def close(self) -> None:
        """Tell and hear nothing any more."""
        self._changes.elsewhere = self._hints.heard = None

    def _tell(self, server: str, method: str, uri: str | None) -> None:
        """Tell the others what a server has announced here."""
        if uri is None:
            if method.endswith("/list_changed"):
                self._hints.tell(_encode(_Hint(server)).decode())
            return
        self._announced.pop((server, uri), None)
        self._announced[server, uri] = self._loop.time()
        if len(self._announced) > ANNOUNCED_KEPT:
            self._announced.popitem(last=False)
        self._hints.tell(_encode(_Hint(server, uri)).decode())

    def _heard(self, message: str) -> None:
        """Take a message, in the thread of the hints."""
        try:
            self._loop.call_soon_threadsafe(self._take, message)
        except RuntimeError:
            logger.debug("a hint came when everything had ended")

    def _take(self, message: str) -> None:
        if not message:
            if self._begun:
                for each in self._fleet.clients.values():
                    each.list_again()
            self._begun = True
            return
        try:
            hint = _decode(message)
        except msgspec.DecodeError:
            return
        client = self._fleet.clients.get(hint.server)
        if client is None:
            return
        if hint.uri is None:
            client.list_again()
        elif self._loop.time() - self._announced.get((hint.server, hint.uri), -inf) >= SAME_SECONDS:
            self._changes.updated_elsewhere(hint.server, hint.uri)
