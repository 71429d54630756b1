"""Machines with hosts, whose files are in a folder of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_context_proxy.installation import HOST_PLACES, read_text
from mcp_context_proxy.installation.journal import Journal, write
from mcp_context_proxy.installation.plan import Configuration, HostPlan, plan

COMMAND = ["/opt/bin/mcp-context-proxy", "serve"]
Place = Callable[[str, bytes | None], Path]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "APPDATA": str(home / "AppData")}


@pytest.fixture
def put(environ: dict[str, str]) -> Place:
    """A way to write the settings of a host."""

    def put(host: str, data: bytes | None) -> Path:
        file = HOST_PLACES[host].file(environ)
        file.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            file.write_bytes(data)
        return file

    return put


class Machine:
    """Our configuration and journal on a machine with hosts."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self.journal, self.environ = Journal(home / "journal"), environ
        self.file = home / "config.toml"

    def install(self, *hosts: str, **variables: bool) -> HostPlan:
        """Install in hosts with one command; return the plan for the last one."""
        text = self.file.read_text("utf-8") if self.file.exists() else None
        configuration = Configuration(self.file, text)
        plans = list[HostPlan]()
        for place in map(HOST_PLACES.__getitem__, hosts):
            file = place.file(self.environ)
            given = (place, file, read_text(file), configuration, COMMAND, self.environ)
            plans.append(plan(*given, variables=variables))
        if configuration.change:
            write(configuration.change)
        for one in plans:
            self.journal.install(one)
        return plans[-1]

    def uninstall(self) -> list[bool]:
        whole = []
        for record, installation in self.journal.installations():
            undone = self.journal.undo(record, installation)
            undone.carry_out()
            whole.append(undone.whole)
        return whole


@pytest.fixture
def machine(home: Path, environ: dict[str, str]) -> Machine:
    return Machine(home, environ)
