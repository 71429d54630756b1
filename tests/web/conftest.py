"""A proxy with an HTTP front that asks for a token, and somebody who has it."""

from collections.abc import AsyncIterator, Iterator

import anyio
import httpx2
import pytest
from support.browser import Page, browser, program
from support.proxies import HttpProxy, http_proxy
from support.raw_client import PATIENCE
from support.servers import Workshop
from support.shop import TOKEN, environment, shop


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    workshop = Workshop(tmp_path_factory.mktemp("web"))
    config = workshop.config(**shop(workshop))
    with http_proxy(config, auth=True, env=environment()) as running:
        yield running
    workshop.close()


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if program() is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def chromium(one_browser: Page) -> Page:
    """The browser, which has left the page of the test before and what that said of its proxy's end."""
    one_browser.look()
    one_browser.open("about:blank")
    one_browser.errors.clear()
    return one_browser


@pytest.fixture
async def api(proxy: HttpProxy) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who has the token, and waits until all servers are there."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=proxy.base, headers=headers, timeout=30) as client:
        with anyio.fail_after(PATIENCE):
            while "browse" not in (await client.get("/api/v1/tools/search?query=browse")).text:
                pass
        yield client
