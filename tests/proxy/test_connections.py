"""The running proxy connects to its configured servers and to nothing else: all its attempts are recorded."""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.proxies import real_command
from support.servers import Workshop, tool
from support.wires import stdio

from mcp_context_proxy.examples import servers

AUDIT_HOOK = """
import os, sys

ATTEMPTS = ("socket.connect", "socket.send", "socket.getaddrinfo", "socket.gethostby", "socket.getnameinfo")


def record(event, arguments):
    if event.startswith(ATTEMPTS):
        with open(os.environ["RECORDED_ATTEMPTS"], "a") as file:
            print(event, *arguments[1 if event == "socket.connect" else 0 :], file=file)


sys.addaudithook(record)
"""
"""Python runs it at the start of the proxy, before anything of the package, because of its file's name."""

STRACE = ("strace", "--follow-forks", "--seccomp-bpf", "--trace=connect,sendto,sendmsg,sendmmsg")
INTERNET_ADDRESS = re.compile(r"sin6?_port=htons\((\d+)\).*?\"([^\"]+)\"")


@pytest.fixture
def remote(workshop: Workshop, tmp_path: Path) -> tuple[str, int]:
    """The address of the one server that is not started by the proxy."""
    server = workshop.http_server("remote", tools=[tool("weather", "Tells the weather of a city")])
    address = urlsplit(server.settings["url"])
    return str(address.hostname), int(address.port or 0)


async def use_everything(workshop: Workshop, prefix: list[str], env: dict[str, str]) -> None:
    """Start the real command and search, list and call tools, with all that it can keep turned on."""
    program, *arguments = servers()["calculator"]
    workshop.server("calculator").settings = {"command": program, "args": arguments}
    config = workshop.config(
        store={"path": str(workshop.folder / "store.sqlite3")},
        interactions={"enabled": True},
        expose={"list_all_below": 0},
    )
    home = {name: str(workshop.folder) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    async with stdio([*prefix, *real_command(config)], env=home | env) as client:
        while True:
            query = {"query": "what is the weather in Rome"}
            found = await client.data("search_available_tools", query)
            names = [result["name"] for result in found["results"]]
            if "remote__weather" in names:
                break
        await client.call("set_context", query)
        await client.call("remote__weather", {"text": "Rome"})
        answer = await client.call("calculator__calculate", {"expression": "6 * 7"})
        assert "42" in json.dumps(answer)


async def test_the_proxy_connects_to_nothing_but_its_configured_servers(
    workshop: Workshop, tmp_path: Path, remote: tuple[str, int]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AUDIT_HOOK)
    recorded = tmp_path / "attempts.txt"

    await use_everything(workshop, [], {"PYTHONPATH": str(tmp_path), "RECORDED_ATTEMPTS": str(recorded)})

    assert set(recorded.read_text().splitlines()) == {f"socket.connect {remote}"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (Debian: apt-get install strace)")
async def test_its_libraries_in_machine_code_connect_to_nothing_either(
    workshop: Workshop, tmp_path: Path, remote: tuple[str, int]
) -> None:
    recorded = tmp_path / "calls.txt"

    await use_everything(workshop, [*STRACE, "--output", str(recorded)], {})

    attempts = INTERNET_ADDRESS.findall(recorded.read_text())
    assert {(host, int(port)) for port, host in attempts} == {remote}
