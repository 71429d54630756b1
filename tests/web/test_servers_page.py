"""The pages that act, in a real browser: servers, tools and hosts, by mouse and keyboard, on every screen."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.browser import Page
from support.proxies import HttpProxy, http_proxy
from support.servers import Workshop, tool
from support.shop import HOSTILE, TOKEN, environment

from mcp_context_proxy.config import load
from mcp_context_proxy.installation import HOST_PLACES
from mcp_context_proxy.trust.tokens import TokenFile, tokens_path

AXE = "MCP_CONTEXT_PROXY_AXE"
"""Variable with the path of axe.min.js, of the npm package axe-core."""

PATHS = ("ui", "ui/tools", "ui/requests", "ui/sessions", "ui/usage", "ui/audit", "ui/approvals", "ui/connect")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workshop = Workshop(tmp_path_factory.mktemp("servers"))
    mails = [tool("send_mail", "Send a mail to somebody"), tool("find_mail", "Find an old mail")]
    workshop.server("post", tools=[*mails, tool("wipe_mail", HOSTILE)], settings={"deny": ["wipe_*"]})
    workshop.server("desk", tools=[tool("tidy", HOSTILE), tool("a_long_name_of_a_tool_" * 2, "Does a lot")])
    workshop.server("asleep", tools=[tool("nap")], settings={"enabled": False})
    workshop.server("gone", settings={"command": "no-such-program"})
    store = {"path": str(workshop.folder / "store.sqlite3")}
    return workshop.config(store=store, expose={"list_all_below": 0})


@pytest.fixture(scope="module")
def token_of_anna(config: Path) -> str:
    """The token of somebody who is no administrator."""
    return TokenFile(tokens_path(load(config, environ={}))).add("anna")


@pytest.fixture(scope="module")
def proxy(config: Path, token_of_anna: str) -> Iterator[HttpProxy]:
    del token_of_anna
    with http_proxy(config, auth=True, env=environment()) as running:
        yield running


@pytest.fixture
def page(chromium: Page, proxy: HttpProxy) -> Iterator[Page]:
    """The first page, opened by somebody who has its address, with all servers in the state they stay in."""
    chromium.open(f"{proxy.base}/#token={TOKEN}")
    for name, state in (("post", "ready"), ("desk", "ready"), ("asleep", "turned off"), ("gone", "failed")):
        chromium.until(state_of(name, state))
    yield chromium
    assert chromium.errors == []


def state_of(name: str, state: str) -> str:
    return f"document.querySelector('[data-name=\"{name}\"] .state')?.textContent === '{state}'"


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.value(
        f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)"
    )
    return found


def press(page: Page, name: str) -> None:
    """Press the button with a name, as those hear it who do not see it."""
    page.until(f"document.querySelector('[aria-label=\"{name}\"]')")
    page.value(f"document.querySelector('[aria-label=\"{name}\"]').click()")


def said(page: Page) -> str:
    return str(page.until("document.querySelector('#done').textContent"))


def visit(page: Page, proxy: HttpProxy, path: str) -> None:
    page.open(f"{proxy.base}/{path}")
    page.until("!document.getElementById('main').hidden && document.querySelector('main').innerText")


def test_the_address_of_the_proxy_leads_to_its_servers_and_keeps_the_token(
    page: Page, proxy: HttpProxy
) -> None:
    assert page.value("location.href") == f"{proxy.base}/ui"
    page.open(f"{proxy.base}/ui/servers")
    page.until(f"location.href === '{proxy.base}/ui' && !document.getElementById('main').hidden")
    assert page.value("Object.values(sessionStorage)") == [TOKEN]
    names = texts(page, "#servers h2")
    assert names[0] == "gone", "those that need somebody stand first"
    assert sorted(names) == ["asleep", "desk", "gone", "post"]
    assert "4 servers \u00b7 1 of them needs you \u00b7 4 tools" in texts(page, "#summary")[0]


def test_a_server_that_does_not_start_says_why_and_when_it_is_tried_again(page: Page) -> None:
    (card,) = texts(page, '[data-name="gone"]')

    assert "no program 'no-such-program' on its PATH" in card
    assert re.search(r"failed attempts?", card)
    assert "no-such-program" in texts(page, '[data-name="gone"] .address')[0]


def test_the_last_lines_of_a_server_are_shown(page: Page) -> None:
    page.value("document.querySelector('[data-name=\"post\"] summary').click()")
    lines = page.until("document.querySelector('[data-name=\"post\"] pre').textContent")

    assert "written nothing" in lines


def test_a_server_is_turned_off_and_on_again_by_undo(page: Page, proxy: HttpProxy) -> None:
    config = proxy.folder / "config.toml"
    before = config.read_text(encoding="utf-8")
    press(page, "Turn off desk")
    page.until(state_of("desk", "turned off"))
    off = config.read_text(encoding="utf-8")
    assert "desk is turned off in " in said(page)
    press(page, "Undo: turn on desk")
    page.until(state_of("desk", "ready"))

    assert "enabled = false" in off.partition("[servers.desk]")[2].partition("[servers.")[0]
    assert config.read_text(encoding="utf-8").replace("enabled = true\n", "") == before


def test_a_server_is_restarted(page: Page) -> None:
    press(page, "Restart post")

    assert said(page).startswith("Server post is started again")
    page.until(state_of("post", "ready"))


def test_tools_are_ranked_while_somebody_types_and_nothing_is_recorded(page: Page, proxy: HttpProxy) -> None:
    visit(page, proxy, "ui/tools")
    page.until("document.querySelectorAll('.row').length === 5")
    page.value("document.getElementById('query').focus()")
    page.type("look for an old mail")
    page.until("document.querySelector('#tools h2')?.textContent.startsWith('Best matches')")
    first = texts(page, ".row .name")[0]
    why = texts(page, ".row .description")[0]
    visit(page, proxy, "ui/requests")

    assert first == "post find_mail"
    assert "meaning" in why
    assert page.value("document.getElementById('no-requests').hidden") is False


def test_without_any_tool_the_list_says_so_and_blames_no_search(chromium: Page, tmp_path: Path) -> None:
    with http_proxy(Workshop(tmp_path).config(), auth=True, env=environment()) as empty:
        chromium.open(f"{empty.base}/ui/tools#token={TOKEN}")
        told = chromium.until("document.getElementById('summary').textContent")
        list_of_tools = chromium.value("document.getElementById('tools').textContent")

    assert told == "0 tools, 0 tokens if a model read them all. "
    assert list_of_tools == "No server has offered a tool yet."


def test_the_list_can_be_narrowed_to_a_server(page: Page, proxy: HttpProxy) -> None:
    visit(page, proxy, "ui/tools#server=desk")
    page.until("document.querySelectorAll('.row').length === 2")

    assert all(name.startswith("desk ") for name in texts(page, ".row .name"))


def test_a_tool_shows_what_a_model_reads_of_it_as_text_and_never_as_markup(
    page: Page, proxy: HttpProxy
) -> None:
    visit(page, proxy, "ui/tools")
    page.until("document.querySelector('[data-name=\"desk__tidy\"]')")
    page.value("document.querySelector('[data-name=\"desk__tidy\"] summary').click()")
    shown = page.until("document.querySelector('[data-name=\"desk__tidy\"] pre')?.textContent")

    assert '"name": "desk__tidy"' in shown
    assert "onerror" in shown
    assert "tokens" in texts(page, '[data-name="desk__tidy"] .cost')[0]
    assert page.value("document.querySelectorAll('img, main script').length") == 0


def test_a_tool_is_turned_off_and_on_with_the_keyboard_alone(page: Page, proxy: HttpProxy) -> None:
    visit(page, proxy, "ui/tools#server=desk")
    key = "switch desk__tidy"
    page.until(f"document.querySelector('[data-key=\"{key}\"]')")
    page.value("document.getElementById('server').focus()")
    while page.value("document.activeElement.dataset.key") != key:
        page.press("Tab")
    assert page.value("document.activeElement.ariaChecked") == "true"
    page.press("Space")
    page.until("document.querySelector('.is-off[data-name=\"desk__tidy\"]')")
    page.until(f"document.activeElement.dataset.key === '{key}'")
    off = page.value("document.activeElement.ariaChecked")
    said_off = said(page)
    page.press("Space")
    page.until("!document.querySelector('.is-off[data-name=\"desk__tidy\"]')")

    assert off == "false"
    assert "desk__tidy is turned off in " in said_off


def test_a_tool_that_a_pattern_turns_off_says_so(page: Page, proxy: HttpProxy) -> None:
    visit(page, proxy, "ui/tools")
    (reason,) = page.until(
        "(() => { const found = [...document.querySelectorAll('.is-off .description')];"
        "  return found.length && found.map((one) => one.textContent); })()"
    )
    press(page, "wipe_mail of post")

    assert "servers.post.deny" in reason
    assert "deny" in said(page), "what still turns it off is named"


def test_every_host_that_can_be_installed_has_its_command(page: Page, proxy: HttpProxy) -> None:
    visit(page, proxy, "ui/connect")
    page.until("document.getElementById('told')")

    assert texts(page, "#hosts h3") == [host.title for host in HOST_PLACES.values()]
    assert texts(page, "#hosts code") == [f"mcp-context-proxy install {name}" for name in HOST_PLACES]
    assert texts(page, "#url") == [f"{proxy.base}/mcp"]


def test_whoever_may_not_see_the_proxy_is_told_how_to_connect_to_it(
    page: Page, proxy: HttpProxy, token_of_anna: str
) -> None:
    page.open("about:blank")
    page.open(f"{proxy.base}/ui/connect#token={token_of_anna}")
    page.until("!document.getElementById('main').hidden")
    page.errors.clear()

    assert texts(page, "#url") == [f"{proxy.base}/mcp"]
    assert texts(page, "#refusal, #connected") in ([], [""])


def test_an_address_of_a_request_still_leads_to_it(page: Page, proxy: HttpProxy) -> None:
    page.open("about:blank")
    page.open(f"{proxy.base}/ui#request=abc")
    page.until("location.pathname === '/ui/requests'")
    page.until("document.getElementById('status').textContent")

    assert page.value("location.hash") == "#request=abc"
    page.errors.clear()


def test_those_who_are_no_administrators_are_told_where_their_own_requests_are(
    page: Page, proxy: HttpProxy, token_of_anna: str
) -> None:
    page.value("sessionStorage.clear()")
    page.open("about:blank")
    page.open(f"{proxy.base}/ui#token={token_of_anna}")
    told = page.until("(() => { const at = document.getElementById('status'); return at.textContent; })()")
    hidden = page.value("document.getElementById('main').hidden")
    page.open("about:blank")
    page.open(f"{proxy.base}/ui/requests#token={token_of_anna}")
    page.until("!document.getElementById('main').hidden")
    page.errors.clear()

    assert "needs an administrator's token" in told
    assert "the page Requests" in told
    assert hidden


def test_the_pages_are_readable_and_fit_from_a_phone_to_a_desktop(page: Page, proxy: HttpProxy) -> None:
    """Every field has a name, too."""
    for path in ("ui", "ui/tools", "ui/connect"):
        visit(page, proxy, path)
        page.until("document.querySelector('.card, .row')")
        page.open_details()
        for dark in (False, True):
            assert all(page.fits(width, dark=dark) for width in (320, 390, 1280)), path
            assert page.unreadable(15) == []
        labels = "[...document.querySelectorAll('main input, select')].map((one) => one.labels.length)"
        assert all(page.value(labels))
        assert all(texts(page, "button"))


def test_nothing_is_loaded_from_elsewhere(page: Page, proxy: HttpProxy) -> None:
    for path in PATHS:
        visit(page, proxy, path)
        loaded = page.value("performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert any(one.startswith(f"{proxy.base}/ui/") for one in loaded)
        assert all(one.startswith((proxy.base, "data:")) for one in loaded), path


def test_a_person_chooses_for_a_session_and_saves_it_as_a_preset(page: Page, proxy: HttpProxy) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "application/json, text/event-stream"}
    with httpx2.Client(base_url=proxy.base, headers=headers) as client:
        opened = client.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
        )
        client.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        search = {"name": "search_available_tools", "arguments": {"query": "clear away the <b>mess</b>"}}
        client.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": search})
        visit(page, proxy, "ui/tools")
        page.until("document.querySelector('[data-name=\"desk__tidy\"]')")
        visit(page, proxy, "ui/sessions")
        page.look(width=390)
        for form, text, there in (
            ("add", "desk__tidy", ".items"),
            ("save", "mine", "#presets .card"),
        ):
            field = f"document.querySelector('form[data-name^=\"{form}\"] input')"
            page.until(field)
            page.value(f"{field}.value = '{text}'")
            page.value(f"{field}.form.requestSubmit()")
            page.until(f"document.querySelector('{there}')?.textContent.includes('{text}')")
            if form == "add":
                where = client.get("/api/v1/sessions").json()["sessions"][0]["id"]
                options = {"preset": "conservative", "max_tokens": 900, "documents": {"top_n": 2}}
                client.patch(f"/api/v1/sessions/{where}/context", json={"options": options})
        card = texts(page, "#sessions .card")[0]
        preset = texts(page, "#presets .card")[0]
        session = page.value("document.querySelector('#sessions .card').dataset.name")
        chosen = texts(page, ".items li")[0]
        press(page, "Remove: desk__tidy")
        page.until("document.querySelector('.items').textContent.includes('removed, by you')")
        press(page, "Forget mine")
        page.until("!document.querySelector('#presets .card')")
        wide = page.value("document.documentElement.scrollWidth")

    assert "1 item added" in preset
    assert "tools.preset = conservative" in preset
    assert "documents.top_n = 2" in preset
    assert "max_tokens = 900" in preset
    assert "top_k" not in preset, "it is as configured"
    assert "added to this session by hand, by you" in chosen
    assert f"session {session}" in card
    assert "Asked last: clear away the <b>mess</b>" in card
    assert wide <= 390


def test_axe_finds_nothing_serious_on_any_page(page: Page, proxy: HttpProxy) -> None:
    if not os.environ.get(AXE):
        pytest.skip(f"{AXE} does not name axe.min.js: npm install axe-core")
    axe = Path(os.environ[AXE]).read_text(encoding="utf-8")
    run = "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations)"
    serious: list[Any] = []
    for path in PATHS:
        visit(page, proxy, path)
        for dark, width in ((False, 1280), (True, 390)):
            page.look(dark=dark, width=width)
            page.value(f"{axe}; null")
            for found in page.value(run):
                if found["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:120] for node in found["nodes"][:3]]
                    serious.append((path, dark, found["id"], nodes))

    assert serious == []
    page.errors.clear()
