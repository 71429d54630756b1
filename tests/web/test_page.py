"""The page in a real browser: its content, its readers, and strangers' texts, which do nothing to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.browser import Page
from support.documents import Documents
from support.proxies import HttpProxy, http_proxy
from support.raw_client import PATIENCE
from support.servers import Workshop, tool
from support.shop import HOSTILE, TOKEN, environment

QUERY = "never mention prices in mail to customers? find an old mail, browse pages"

AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
TEXTS = "[...document.querySelectorAll('{}')].map((found) => found.textContent)"

ALL_MODES = (Path(__file__).parent / "all_modes.js").read_text(encoding="utf-8")


@pytest.fixture
def page(chromium: Page, proxy: HttpProxy) -> Iterator[Page]:
    """The page, opened by somebody who has its address, with the latest request shown."""
    with httpx2.Client(headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE) as client:
        latest = client.post(f"{proxy.base}/api/v1/context", json={"query": "the first one"})
    chromium.open(f"{proxy.base}/ui/requests#token={TOKEN}")
    chromium.until(f"document.querySelector('[data-id=\"{latest.json()['id']}\"] a[aria-current]')")
    yield chromium
    assert chromium.errors == []


SEVERAL = {"tools": {"top_n": 5}}
"""A fixed number of tools, whether they fit well or not."""


@pytest.fixture
async def served(api: httpx2.AsyncClient) -> dict[str, Any]:
    """A request context that was just served."""
    response = await api.post("/api/v1/context", json={"query": QUERY, "options": SEVERAL})
    return response.json()


def show(page: Page, request: dict[str, Any]) -> None:
    page.value(f"location.hash = '#request={request['id']}'")
    page.come_back()
    page.until(f"document.querySelector('[data-id=\"{request['id']}\"] a[aria-current]')")


def texts(page: Page, selector: str) -> list[str]:
    return page.value(TEXTS.format(selector))


def test_the_token_leaves_the_address_at_once_and_stays_in_the_tab(page: Page) -> None:
    assert page.value("location.hash") == ""
    assert TOKEN not in page.value("location.href")
    assert page.value("Object.values(sessionStorage)") == [TOKEN]
    assert page.value("localStorage.length") == 0
    assert page.value("document.cookie") == ""


def test_without_the_token_it_asks_for_it(chromium: Page, proxy: HttpProxy) -> None:
    chromium.open(proxy.base + "/ui/requests")
    chromium.value("sessionStorage.clear()")
    chromium.command("Page.reload")
    chromium.until("document.activeElement?.id === 'token'")
    chromium.type("wrong")
    chromium.press("Enter")
    chromium.until("document.getElementById('refusal').textContent")
    hidden = chromium.value("document.getElementById('main').hidden")
    chromium.value("document.getElementById('token').focus()")
    chromium.type(TOKEN)
    chromium.press("Enter")
    chromium.until("!document.getElementById('main').hidden")
    errors, chromium.errors = chromium.errors, []

    assert hidden
    assert chromium.value("document.getElementById('login').hidden")
    assert errors
    assert all("401" in error for error in errors)


async def test_a_request_is_shown_in_three_columns_in_order_of_rank_with_the_reasons(
    page: Page, served: dict[str, Any]
) -> None:
    show(page, served)

    def ranked(kind: str) -> list[dict[str, Any]]:
        found = [item for item in served["items"] if item["type"] == kind]
        return sorted(found, key=lambda item: -1 if item["score"] is None else item["score"], reverse=True)

    rules, references, tools = ranked("rule"), ranked("reference"), ranked("tool")
    counts = [f"Rules {len(rules)}", f"References {len(references)}", f"Tools {len(tools)}"]
    assert texts(page, ".columns h3") == counts
    assert texts(page, '[data-type="rule"] .title') == ["mailing", "tone"]
    assert texts(page, '[data-type="rule"] .priority') == ["900", "007"]
    assert texts(page, '[data-type="rule"] .badge') == ["matches the query", "in every session"]
    shown = texts(page, '[data-type="tool"] .title')
    assert sorted(shown) == sorted(item["name"].replace("__", " ") for item in tools)
    scores = [item["score"] for item in tools if item["score"] is not None]
    assert texts(page, '[data-type="tool"] .score') == [f"{score:.2f}" for score in scores]
    whys = texts(page, '[data-type="tool"] .why')
    assert all(why.endswith(" tokens.") for why in whys)
    assert any("meaning" in why for why in whys)
    heading = page.value("document.querySelector('#context h2').textContent")
    assert heading == QUERY
    assert "tokens are shown" in page.value("document.querySelector('.share').textContent")


async def test_by_rank_rules_of_every_session_stand_by_priority_and_brought_tools_at_the_end(
    chromium: Page, tmp_path: Path
) -> None:
    workshop = Workshop(tmp_path)
    documents = Documents(tmp_path)
    for name, priority in (("aaa", 900), ("zzz", 1)):
        documents.add("rule", name, "always", f"The rule {name}.", priority)
    tools = [tool("send_mail", "Send a mail to somebody"), tool("browse", "Read a page of the web")]
    workshop.server("post", tools=tools)
    context = {"expansion_rules": {"send_mail": ["browse"]}}
    config = workshop.config(documents=documents.table, context=context)
    with http_proxy(config, auth=True, env=environment()) as proxy:
        async with httpx2.AsyncClient(headers=AUTHORIZED, timeout=PATIENCE) as client:
            url = f"{proxy.base}/api/v1/context"
            served = (await client.post(url, json={"query": "send a mail to somebody"})).json()
        chromium.open(f"{proxy.base}/ui/requests#token={TOKEN}")
        chromium.until(f"document.querySelector('[data-id=\"{served['id']}\"] a[aria-current]')")

        assert texts(chromium, '[data-type="rule"] .title') == ["zzz", "aaa"]
        assert texts(chromium, '[data-type="tool"] .title') == ["post send_mail", "post browse"]
    workshop.close()


async def test_a_request_can_be_ordered_by_priority_and_name(page: Page, served: dict[str, Any]) -> None:
    show(page, served)
    page.value("document.querySelector('input[value=name]').click()")
    names = sorted(item["name"] for item in served["items"] if item["type"] == "tool")

    assert texts(page, '[data-type="tool"] .title') == [name.replace("__", " ") for name in names]
    page.value("document.querySelector('input[value=score]').click()")


async def test_if_nothing_fits_it_says_so_and_shows_the_nearest_items(
    page: Page, api: httpx2.AsyncClient
) -> None:
    show(page, (await api.post("/api/v1/context", json={"query": "zyxgh qwvut", "options": SEVERAL})).json())
    scores = [float(score) for score in texts(page, ".further .score")]

    assert texts(page, "#outcome") == ["Nothing fits this query well. The nearest are below."]
    assert len(scores) > 2
    assert scores == sorted(scores, reverse=True)


async def test_a_priority_has_three_digits(page: Page, api: httpx2.AsyncClient) -> None:
    show(page, (await api.post("/api/v1/context", json={"query": "the address of the team"})).json())

    assert texts(page, '[data-name="addresses"] .priority') == ["040"]


async def test_the_size_of_the_whole_catalog_is_shown_once_it_is_counted(page: Page) -> None:
    shown = """import("/ui/view.js").then(({ shareOf }) =>
      [null, 40].map((behind) => shareOf({ tokens: 5 }, behind).textContent.trim()))"""

    assert page.value(shown) == [
        f"{of} tokens are shown, definitions counted whole" for of in ("5", "5 of 40")
    ]
    assert " of " in page.until(
        "document.querySelector('#requests .facts').textContent.includes(' of ') && "
        "document.querySelector('#context .share').textContent"
    )


async def test_every_mode_has_a_colour_of_its_own(page: Page) -> None:
    page.value(ALL_MODES)
    colour = "(badge) => getComputedStyle(badge).backgroundColor"
    colours = page.value(f"[...document.querySelectorAll('.columns .badge')].map({colour})")

    assert len(colours) == 8
    assert len(set(colours)) == 8


async def test_a_description_is_shown_below_its_item_and_when_pointed_at(
    page: Page, served: dict[str, Any]
) -> None:
    show(page, served)
    item = "document.querySelector('[data-name=\"mailing\"]')"

    described = page.value(f"{item}.querySelector('.description').textContent")
    assert described.startswith("Mail to customers")
    assert page.value(f"{item}.title") == described


async def test_html_in_a_description_is_shown_as_text(page: Page, served: dict[str, Any]) -> None:
    show(page, served)
    item = "document.querySelector('[data-name=\"archive__browse\"]')"

    assert page.value(f"{item}.querySelector('.description').textContent") == HOSTILE
    assert page.value(f"{item}.title") == HOSTILE
    assert page.value("document.querySelectorAll('img, #context script').length") == 0
    assert page.value("document.title") == "Request contexts - mcp-context-proxy"


async def test_the_page_cannot_insert_text_as_markup(page: Page) -> None:
    attempt = "(() => { try { document.body.innerHTML = '<p>in'; } catch (error) { return error.name; } })()"

    assert page.value(attempt) == "TypeError"
    page.errors.clear()


async def test_a_query_is_ranked_while_it_is_typed_and_not_recorded(
    page: Page, api: httpx2.AsyncClient
) -> None:
    before = (await api.get("/api/v1/requests?limit=1")).json()["requests"][0]["id"]
    page.value("document.getElementById('query').focus()")
    page.type("tell the time")
    page.until("document.querySelector('#context q')?.textContent === 'tell the time'")
    names = texts(page, '[data-type="tool"] .title')
    page.type(" or find an old mail")
    page.until("document.querySelector('#context q').textContent.endsWith('old mail')")
    after = (await api.get("/api/v1/requests?limit=1")).json()["requests"][0]["id"]

    assert names[0] == "post clock"
    assert texts(page, "#outcome") == []
    assert "archive find_mail" in texts(page, '[data-type="tool"] .title')
    scores = [float(score) for score in texts(page, '[data-type="tool"] .score')]
    assert scores == sorted(scores, reverse=True)
    assert page.value("document.activeElement.id") == "query"
    assert before == after


async def test_a_new_request_appears_without_reloading(page: Page, api: httpx2.AsyncClient) -> None:
    answer = await api.get("/api/v1/tools/search", params={"query": "something new to find"})
    request = answer.json()["metadata"]["request_id"]
    entry = f"document.querySelector('#requests li:first-child[data-id=\"{request}\"]')"

    text = page.until(f"{entry}?.textContent")

    assert text.startswith("something new to find")
    assert "tokens" in text


async def test_everything_can_be_used_with_the_keyboard(
    page: Page, served: dict[str, Any], api: httpx2.AsyncClient
) -> None:
    await api.get("/api/v1/tools/search", params={"query": "a later one"})
    page.come_back()
    page.until("document.querySelector('#requests .query').textContent === 'a later one'")
    page.value("document.getElementById('query').focus()")
    page.press("Tab")
    page.press("Tab")
    assert page.value("document.activeElement.querySelector('.query').textContent") == QUERY
    page.press("Enter")
    page.until(f"document.querySelector('#context q')?.textContent === {QUERY!r}")
    while page.value("document.activeElement.closest('#requests') !== null"):
        page.press("Tab")
    assert page.value("document.activeElement.name") == "order"
    page.press("ArrowRight")
    page.until("document.querySelector('input[value=name]').checked")
    assert page.value("document.activeElement.value") == "name"
    page.press("Tab")
    page.press("Enter")
    opened = page.until("document.querySelector('details[open] .description')?.textContent")

    assert opened


async def test_every_text_is_readable_in_the_light_and_the_dark(page: Page) -> None:
    page.value(ALL_MODES)
    page.open_details()
    for dark in (False, True):
        page.look(dark=dark)
        assert page.unreadable(50) == []


async def test_light_and_dark_differ(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.value(background)
    page.look(dark=True)

    assert page.value(background) != light


async def test_nothing_is_wider_than_the_window(page: Page) -> None:
    page.value(ALL_MODES)
    assert all(page.fits(width) for width in (320, 390, 768, 1920))


async def test_every_field_has_a_label(page: Page) -> None:
    fields = page.value("[...document.querySelectorAll('input')].map((field) => field.labels.length)")

    assert fields
    assert all(fields)


SERVED = ("requests", "page.js", "view.js", "style.css", "api.js")
SERVED += tuple(f"usage{ending}" for ending in ("", ".js", "_view.js", ".css"))


async def test_the_files_are_served_without_a_token_and_with_a_strict_policy(proxy: HttpProxy) -> None:
    async with httpx2.AsyncClient(base_url=proxy.base) as stranger:
        for file in ("", *SERVED):
            answer = await stranger.get(f"/ui/{file}".removesuffix("/"))
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "'unsafe" not in answer.headers["content-security-policy"]
        slash = await stranger.get("/ui/")
        away = await stranger.get("/ui/../api/v1/requests")
        escaped = await stranger.get("/ui/%2e%2e/api/v1/requests")

    assert (slash.status_code, slash.headers["location"]) == (308, "../ui")
    assert (away.status_code, escaped.status_code) == (401, 401)
