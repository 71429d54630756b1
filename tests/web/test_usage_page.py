"""The page of usage in a real browser: it shows the counts to everyone who may look."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.browser import Page
from support.proxies import HttpProxy, http_proxy
from support.servers import Workshop, tool
from support.shop import TOKEN, environment

from mcp_context_proxy.statistics import count_call
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import (
    DAY,
    DefinitionRow,
    DocumentUsage,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
)

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
LONG = "add_an_issue_comment_with_all_attachments_and_labels_of_the_template"


def counted(path: Path) -> None:
    """Fifteen days in which a fast, a slow and a failing tool were called; others are known for longer."""
    now = time.time()
    with open_store(path) as store:
        known = [DefinitionRow("desk", name, "", 1, now - 40 * DAY) for name in ("never", "nor_this")]
        store.statistics.put_definitions("desk", known)
        for day in range(15):
            at = now - day * DAY
            for name, ms, failed in (("fast", 2.0, 0), (LONG, 3000.0, 0), ("failing", 50.0, 2)):
                usage = ToolUsage("desk", name)
                for number in range(4):
                    count_call(usage, ms, number < failed, 512, at)
                store.statistics.add([(UsageSlot.of(at), usage)], {}, [])
            searched = SearchUsage(4, 4, 3, 2, 0, 40.0, 400, 8_000, {58: 4})
            row = SearchRow(
                f"{day}", at, b"k", HOSTILE, "search", 3, "desk__fast", "desk__failing", 2, 9.0, False
            )
            store.statistics.add([], {UsageSlot.of(at): searched}, [row])
        # Three weeks ago, requests with and without learned pairs were compared.
        store.statistics.add([], {}, list(compared(now - 21 * DAY)))
        known = [DefinitionRow("", f"rule/{name}", "", 1, now - 40 * DAY) for name in (HOSTILE, "unread")]
        store.statistics.put_definitions("", known)
        read = DocumentUsage("rule", HOSTILE, found=7, delivered=5, reads=2, last=now)
        store.statistics.add([], {}, [], documents=[(UsageSlot.of(now), read)])


def compared(at: float) -> Iterator[SearchRow]:
    for number in range(80):
        arm, rank = ("plain", 2) if number % 4 == 0 else ("learned", 1)
        yield SearchRow(
            f"c{number}",
            at - (number % 2) * 7 * DAY,
            b"k",
            None,
            "search",
            3,
            "a",
            "a",
            rank,
            1.0,
            False,
            arm,
            f"s{number}",
            1,
        )


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    workshop = Workshop(tmp_path_factory.mktemp("usage"))
    names = ["fast", LONG, "failing", "never", "nor_this", "newest"]
    workshop.server("desk", tools=[tool(name, f"Does {name}") for name in names])
    path = workshop.folder / "store.sqlite3"
    counted(path)
    (workshop.folder / "rules").mkdir()
    (workshop.folder / "rules" / "unread.md").write_text("# Unread\n\nNobody needs this.\n", encoding="utf-8")
    config = workshop.config(
        store={"path": str(path)},
        expose={"list_all_below": 0},
        documents=[{"kind": "rule", "path": "rules"}],
    )
    with http_proxy(config, auth=True, env=environment()) as running:
        yield running
    workshop.close()


@pytest.fixture
def page(chromium: Page, proxy: HttpProxy) -> Iterator[Page]:
    chromium.open(f"{proxy.base}/ui/usage#token={TOKEN}")
    chromium.until("document.querySelector('#usage-unused').parentElement.textContent.includes('Turn')")
    yield chromium
    assert chromium.errors == []


def block(page: Page, name: str) -> str:
    found = page.value(f"document.getElementById('usage-{name}').parentElement.innerText")
    return " ".join(found.split())


def names(page: Page, name: str) -> list[str]:
    rows = (
        f"document.getElementById('usage-{name}').parentElement.querySelectorAll('tbody tr td:first-child')"
    )
    return page.value(f"[...{rows}].map((cell) => cell.textContent)")


def test_the_token_leaves_the_address_and_opens_the_other_page_too(page: Page, proxy: HttpProxy) -> None:
    assert TOKEN not in page.value("location.href")
    for path in ("/ui", "/ui/tools"):
        page.open(page.value("document.querySelector('nav a:not([aria-current])').href"))
        assert page.value("location.href") == proxy.base + path
        page.until("!document.getElementById('main').hidden")


def test_requests_with_and_without_learned_pairs_are_compared_with_intervals_and_over_time(
    page: Page,
) -> None:
    told = block(page, "learning")

    assert "60 requests of 60 sessions with, 20 of 20 without." in told
    assert "First tool called 100 % (" in told
    assert "+100 points (" in told
    assert page.value("document.querySelectorAll('#usage .better').length") == 1
    over = "document.querySelectorAll('#usage details[data-name=learning] tbody tr').length"
    assert page.value(over) == 2


def test_use_of_documents_is_shown_with_those_that_could_go(page: Page) -> None:
    told = block(page, "documents")

    assert f"rule {HOSTILE} 7 5 2" in told
    assert "1 was not found, given or read in 30 days." in told


def test_usage_and_savings_are_summed_up(page: Page) -> None:
    tiles = " ".join(page.value("document.querySelector('.tiles').innerText").split())

    assert "Calls 180 17 % failed" in tiles
    assert "Searches 60" in tiles
    assert "First result used 50 % any result: 75 %" in tiles
    assert "Tokens saved 95 % 6,000 shown of 120,000, estimated" in tiles


def test_savings_are_drawn_over_time_and_can_be_read_as_a_table(page: Page) -> None:
    chart = "document.getElementById('usage-saved').parentElement"

    assert page.value(f"{chart}.querySelectorAll('svg g').length") == 15
    assert page.value(f"{chart}.querySelector('svg').getAttribute('aria-label')").endswith("6,000 of 120,000")
    bars = f"[...{chart}.querySelectorAll('g:first-child rect')]"
    heights = page.value(f"{bars}.map((bar) => Number(bar.getAttribute('height')))")
    assert heights == [100, 100, 5]
    page.value(f"{chart}.querySelector('summary').click()")
    assert page.value(f"{chart}.querySelectorAll('tbody tr').length") == 15
    assert "8,000" in block(page, "saved")


def test_slow_and_failing_tools_are_highlighted(page: Page) -> None:
    assert names(page, "slow")[0] == f"desk {LONG}"
    assert names(page, "failing") == ["desk failing"]
    assert "50 %" in block(page, "failing")
    assert sorted(names(page, "tools")) == sorted(["desk fast", f"desk {LONG}", "desk failing"])


async def test_unused_tools_are_named_with_their_cost(page: Page, proxy: HttpProxy) -> None:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        told = (await client.get(f"{proxy.base}/api/v1/statistics/tools")).json()["unused"]
    text = block(page, "unused")

    assert "2 tools were not called in 30 days. Turn these off and save" in text
    assert f"save about {told['tokens']} tokens" in text
    assert "enabled = false turns off a tool under [servers.NAME.tools.TOOL]" in " ".join(text.split())
    assert "A further 1 not called yet, but known for less than 30 days." in text
    assert "manual" not in text
    assert sorted(names(page, "unused")) == ["desk never", "desk nor_this"]


def test_another_period_shows_its_own_figures(page: Page) -> None:
    page.value("document.querySelector('#period input[value=\"24h\"]').focus()")
    page.value("document.querySelector('#period input[value=\"24h\"]').click()")
    page.until("document.querySelector('.tiles .value').textContent === '24'")
    hours = page.value("document.querySelectorAll('#usage-saved ~ svg g').length")
    page.value("document.querySelector('#period input[value=\"30d\"]').click()")
    page.until("document.querySelector('.tiles .value').textContent === '180'")

    assert 24 <= hours <= 26


def test_a_few_days_are_drawn_at_the_right_without_stretching(page: Page) -> None:
    page.value("document.querySelector('#period input[value=\"7d\"]').click()")
    page.until("document.querySelectorAll('#usage-saved ~ svg g').length < 14")
    drawn = page.value(
        "(() => { const box = (element) => element.getBoundingClientRect();"
        "const svg = box(document.querySelector('#usage-saved ~ svg'));"
        "const bars = [...document.querySelectorAll('#usage-saved ~ svg g')].map(box);"
        "return { wide: bars[0].width / svg.width, end: (svg.right - bars.at(-1).right) / svg.width }; })()"
    )

    assert drawn["wide"] < 0.1
    assert drawn["end"] < 0.05


def test_html_in_names_and_queries_is_shown_as_text(page: Page) -> None:
    assert HOSTILE in page.value("document.getElementById('usage-searches').parentElement.textContent")
    assert page.value("document.querySelectorAll('img, #usage script').length") == 0
    assert page.value("document.title") == "Usage - mcp-context-proxy"


def test_everything_can_be_used_with_the_keyboard(page: Page) -> None:
    page.value("document.querySelector('#period input:checked').focus()")
    page.press("Tab")
    assert page.value("document.activeElement.textContent") == "As a table"
    page.press("Enter")
    assert page.value("document.activeElement.parentElement.open")
    page.press("Tab")
    assert page.value("document.activeElement.className") == "scroll"
    reached = set()
    for _ in range(12):
        page.press("Tab")
        reached.add(page.value("document.activeElement.closest('section')?.querySelector('h2').id"))

    assert reached >= {"usage-calls", "usage-slow", "usage-failing", "usage-unused", "usage-tools"}


def test_opened_sections_stay_open_when_new_data_arrive(page: Page, proxy: HttpProxy) -> None:
    page.value("document.querySelector('details[data-name=\"unused\"] summary').focus()")
    page.press("Enter")
    before = int(page.value("document.querySelectorAll('.tiles .value')[1].textContent"))
    with httpx2.Client(headers={"authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
        client.get(f"{proxy.base}/api/v1/tools/search?query=does+fast").raise_for_status()
    page.until(f"document.querySelectorAll('.tiles .value')[1].textContent === '{before + 1}'")

    assert page.value("document.querySelector('details[data-name=\"unused\"]').open")
    assert page.value("document.activeElement.tagName") == "SUMMARY"


def test_every_text_is_readable_in_the_light_and_the_dark(page: Page) -> None:
    page.open_details()
    for dark in (False, True):
        page.look(dark=dark)
        assert page.unreadable(50) == []


def test_nothing_is_wider_than_the_window(page: Page) -> None:
    page.open_details()
    assert all(page.fits(width) for width in (320, 390, 768, 1920))


def test_no_table_scrolls_sideways_on_a_telephone(page: Page) -> None:
    page.look(width=390)
    wide = page.value(
        "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    )

    assert page.value("document.querySelectorAll('#usage-tools ~ .scroll td').length") > 0
    assert wide == 0
