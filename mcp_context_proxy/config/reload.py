"""Follows the configuration file while the proxy runs: a good one is applied, a bad one changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import anyio

from mcp_context_proxy.config.difference import needs_restart
from mcp_context_proxy.config.notices import NOTICE
from mcp_context_proxy.config.settings import Config
from mcp_context_proxy.config.watch import watch_file
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.threads import in_thread

logger = logging.getLogger(__name__)

SECOND_LOOK_SECONDS: Final = 1.0
"""After which a file is read again that names a server no more: one that is only half written may look so."""

Load = Callable[[], Config]
"""Reads the configuration again, from where it was read first.

Raises:
    ConfigError: it cannot be used.
"""

Apply = Callable[[Config], Awaitable[None]]
"""Makes the running proxy follow a configuration."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How what runs differs from what is written."""

    problems: tuple[str, ...] = ()
    """Why the file as it is now is not used: each with file, line and key. Empty when it is."""
    needs_restart: tuple[str, ...] = ()
    """Dotted keys that were changed since the start and have no effect before the next one."""


class Reloader:
    """Loads the configuration when its file changes, or when it is asked to."""

    def __init__(self, started: Config, load: Load) -> None:
        """Prepare to follow.

        Args:
            started: What the proxy was started with.
            load: Reads the file again; called in a thread.
        """
        self._started, self._current, self._load = started, started, load
        self._asked = anyio.Event()
        self.standing = Standing()

    def ask(self) -> None:
        """Have the file read soon, whether or not it looks changed."""
        self._asked.set()

    async def run(self, apply: Apply) -> None:
        """Follow the file until cancelled: `apply` takes each configuration that differs from the last."""
        async with anyio.create_task_group() as group:
            if self._started.path is not None:
                group.start_soon(watch_file, self._started.path, self.ask)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                try:
                    await self._reload(apply)
                except Exception:
                    # boundary: a fault in one reload; the next edit is a new try
                    logger.exception("the changed configuration could not be applied")

    async def _reload(self, apply: Apply) -> None:
        try:
            config = await self._loaded()
        except ConfigError as error:
            self._refuse(error)
            return
        if self.standing.problems:
            logger.log(NOTICE, "%s can be used again", config.path)
            self.standing = replace(self.standing, problems=())
        if config == self._current:
            return
        await apply(config)
        self._current = config
        self._tell_needs_restart(config)

    async def _loaded(self) -> Config:
        config = await in_thread(self._load)
        if self._current.servers.keys() - config.servers.keys():
            await anyio.sleep(SECOND_LOOK_SECONDS)
            config = await in_thread(self._load)
        return config

    def _refuse(self, error: ConfigError) -> None:
        problems = tuple(map(str, error.problems))
        if problems == self.standing.problems:
            return
        self.standing = replace(self.standing, problems=problems)
        logger.error("the changed configuration is not used, what runs stays as it is. %s", error)

    def _tell_needs_restart(self, config: Config) -> None:
        keys = needs_restart(self._started, config)
        if keys and keys != self.standing.needs_restart:
            logger.warning("%s: needs a restart: %s", config.path, ", ".join(keys))
        self.standing = replace(self.standing, needs_restart=keys)
