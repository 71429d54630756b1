"""``ui``: the address of the page, for somebody who may see it."""

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.nobody import as_nobody, needs_another_user
from support.proxies import http_proxy
from support.servers import Workshop

from mcp_context_proxy.cli.serve import _other_user_at

from .conftest import Run


def served_at(folder: Path, port: int) -> Path:
    """A configuration that names a port."""
    config = folder / "ui.toml"
    config.write_text(f"[http]\nport = {port}\n", encoding="utf-8")
    return config


def test_ui_prints_the_address_with_the_token_in_the_fragment(
    run: Run, workshop: Workshop, environment: dict[str, str]
) -> None:
    with http_proxy(workshop.config(), auth=True, env=environment) as proxy:
        port = int(proxy.base.rsplit(":", 1)[1])
        done = run("ui", "--config", served_at(workshop.folder, port))
        address, _, token = done.stdout.strip().partition("#token=")
        page = httpx2.get(address)
        answer = httpx2.get(f"{proxy.base}/api/v1/requests", headers={"authorization": f"Bearer {token}"})

    assert done.returncode == 0
    assert address == f"{proxy.base}/ui"
    assert (page.status_code, answer.status_code) == (200, 200)


def test_ui_prints_no_token_if_none_is_required(
    run: Run, workshop: Workshop, environment: dict[str, str]
) -> None:
    with http_proxy(workshop.config(), env=environment) as proxy:
        config = served_at(workshop.folder, int(proxy.base.rsplit(":", 1)[1]))
        config.write_text(config.read_text(encoding="utf-8") + "auth = false\n", encoding="utf-8")
        done = run("ui", "--config", config)

    assert done.stdout.strip() == f"{proxy.base}/ui"


def test_ui_names_a_loopback_address_for_a_front_on_every_address(
    run: Run, workshop: Workshop, environment: dict[str, str]
) -> None:
    with http_proxy(workshop.config(), "--host", "0.0.0.0", auth=True, env=environment) as proxy:
        port = int(proxy.base.rsplit(":", 1)[1])
        config = served_at(workshop.folder, port)
        config.write_text(config.read_text(encoding="utf-8") + 'host = "0.0.0.0"\n', encoding="utf-8")
        done = run("ui", "--config", config)

    assert done.stdout.startswith(f"http://127.0.0.1:{port}/ui#token=")


def test_ui_says_how_to_start_a_proxy_if_none_answers(run: Run, workshop: Workshop) -> None:
    config = served_at(workshop.folder, 9)  # "discard": nobody serves pages there
    config.write_text(config.read_text(encoding="utf-8") + "api_port = 1\n", encoding="utf-8")

    done = run("ui", "--config", config)

    assert done.returncode == 1
    assert "127.0.0.1:1 or 127.0.0.1:9" in done.stderr
    assert "while a host is connected" in done.stderr
    assert "serve --http" in done.stderr
    assert done.stdout == ""


def test_ui_accepts_another_port_than_the_configured_one(
    run: Run, workshop: Workshop, environment: dict[str, str]
) -> None:
    with http_proxy(workshop.config(), auth=True, env=environment) as proxy:
        port = proxy.base.rsplit(":", 1)[1]
        done = run("ui", "--port", port, "--config", served_at(workshop.folder, 9))

    assert done.stdout.startswith(f"{proxy.base}/ui#token=")


PAGE = """
import socket, sys
page = sys.argv[1].encode()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(page) + page)
    peer.close()
"""


def test_ui_takes_no_page_of_another_program_for_its_own(run: Run, workshop: Workshop) -> None:
    command = [sys.executable, "-c", PAGE, "<title>Flowers</title>"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        done = run("ui", "--config", served_at(workshop.folder, port))
        other.kill()

    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stdout == ""


@needs_another_user
@pytest.mark.skipif(not as_nobody, reason="needs root")
def test_ui_leads_to_no_page_of_another_user_who_listens_at_the_port(run: Run, workshop: Workshop) -> None:
    ours = "<title>Servers - mcp-context-proxy</title>"
    command = [*as_nobody, "/usr/bin/python3", "-I", "-S", "-c", PAGE, ours]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        done = run("ui", "--config", served_at(workshop.folder, port))
        other.kill()

    assert done.returncode == 1
    assert f"user nobody serves the page at 127.0.0.1:{port}" in done.stderr
    assert "sudo -u nobody mcp-context-proxy ui" in done.stderr
    assert "token=" not in done.stdout


def test_a_system_without_numbers_of_users_names_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where `ui` ended with an error wherever it found a page."""
    monkeypatch.delattr("os.getuid")

    assert _other_user_at(0) is None
