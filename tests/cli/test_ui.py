"""``ui``: the address of the page, for somebody who may see it."""

from pathlib import Path

import httpx2
from support.proxies import http_proxy
from support.servers import Workshop

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
    assert "serve --http" in done.stderr
    assert done.stdout == ""


def test_ui_accepts_another_port_than_the_configured_one(
    run: Run, workshop: Workshop, environment: dict[str, str]
) -> None:
    with http_proxy(workshop.config(), auth=True, env=environment) as proxy:
        port = proxy.base.rsplit(":", 1)[1]
        done = run("ui", "--port", port, "--config", served_at(workshop.folder, 9))

    assert done.stdout.startswith(f"{proxy.base}/ui#token=")
