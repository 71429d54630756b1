"""The pages of approvals and of the audit in a real browser: a person decides, and finds the decision."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Page
from support.proxies import HttpProxy, http_proxy
from support.servers import Workshop, tool
from support.shop import HOSTILE, TOKEN, environment

TEXT = "document.querySelector('main').innerText"


@pytest.fixture(scope="module")
def workshop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("approvals")


@pytest.fixture(scope="module")
def proxy(workshop_folder: Path) -> Iterator[HttpProxy]:
    workshop = Workshop(workshop_folder)
    workshop.server("calc", tools=[tool("add", "Adds"), tool("sneaky", f"Adds\u200b {HOSTILE}")])
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    with http_proxy(config, auth=True, env=environment()) as running:
        yield running
    workshop.close()


@pytest.fixture
def page(chromium: Page, proxy: HttpProxy) -> Iterator[Page]:
    yield chromium
    assert chromium.errors == []


def test_a_person_approves_on_the_page_what_it_shows_and_the_audit_has_it(
    page: Page, proxy: HttpProxy
) -> None:
    page.open(f"{proxy.base}/ui/approvals#token={TOKEN}")
    page.until("document.querySelector('.definition')")
    shown = page.value(TEXT)
    assert "calc: tool sneaky" in shown
    assert "<U+200B>" in shown
    assert "<img src=x" in shown
    assert page.value("document.querySelectorAll('main img').length") == 0
    assert page.value("document.title") != "taken"

    page.value("document.querySelector('button[aria-label^=\"Approve tool sneaky\"]').click()")
    page.until(f"{TEXT}.includes('Nothing waits for approval.')")

    page.open(f"{proxy.base}/ui/audit#token={TOKEN}")
    page.until(f"{TEXT}.includes('approval') && {TEXT}.includes('sneaky')")
    assert "page" in page.value(TEXT)
    assert "taken" not in page.value("document.title")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_of_the_audit_says_that_there_are_more_entries_than_it_shows(
    page: Page, proxy: HttpProxy, workshop_folder: Path
) -> None:
    page.open(f"{proxy.base}/ui/audit#token={TOKEN}")
    page.until(f"{TEXT}.includes('approval')")
    assert "The latest" not in page.value(TEXT)
    entry = {"time": time.time(), "kind": "login", "server": "calc", "event": "logged in"}
    with (workshop_folder / "audit.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(entry)}\n" for _ in range(250))
    page.command("Page.reload")
    page.until(f"{TEXT}.includes('The latest 200 entries of this time. mcp-context-proxy audit --since 24h')")


def test_without_the_token_the_pages_ask_for_it_and_show_nothing(page: Page, proxy: HttpProxy) -> None:
    for path in ("approvals", "audit", "usage"):
        page.open(f"{proxy.base}/ui/{path}")
        page.value("sessionStorage.clear()")
        page.command("Page.reload")
        page.until("document.activeElement?.id === 'token'")
        assert not page.value("document.querySelector('main').checkVisibility()")
    page.errors.clear()  # the browser tells of each 401
