"""A proxy whose server wants a login says so, and goes on once there is one."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.authorization import Protected
from support.proxies import Host
from support.raw_client import RpcError

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import open_proxy
from mcp_context_proxy.config import load

from .conftest import configuration, logged_in


async def test_a_server_that_requires_a_login_names_the_command_and_works_after_it(
    protected: Protected, tmp_path: Path, era: str
) -> None:
    more = f'era = "{era}"\n[limits]\nbackoff_first_seconds = 0.05\n'
    config = load(configuration(tmp_path, protected, more), environ={})
    async with open_proxy(config) as proxy:
        await proxy.wait_first_connect()
        assert "run: mcp-context-proxy login locked" in proxy.fleet.clients["locked"].cause
        await logged_in(config.servers["locked"])
        result = await _called(proxy)

    assert result["content"][0]["text"] == "someone"


async def test_a_login_is_used_at_once_whenever_the_next_retry_would_be(
    protected: Protected, tmp_path: Path, era: str
) -> None:
    more = f'era = "{era}"\n[limits]\nbackoff_first_seconds = 9000.0\nbackoff_max_seconds = 9000.0\n'
    config = load(configuration(tmp_path, protected, more), environ={})
    async with open_proxy(config) as proxy:
        await proxy.wait_first_connect()
        await logged_in(config.servers["locked"])
        result = await _called(proxy)

    assert result["content"][0]["text"] == "someone"


@pytest.mark.parametrize("echo", ["failure", "refusal", "result"])
async def test_a_token_that_its_server_reveals_is_in_no_error_and_no_log(
    protected: Protected, tmp_path: Path, era: str, echo: str
) -> None:
    config = load(configuration(tmp_path, protected, f'era = "{era}"\n'), environ={})
    token = (await logged_in(config.servers["locked"])).access_token
    log, logged = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(log)
    logged.addHandler(handler)
    try:
        async with open_proxy(config) as proxy:
            await proxy.wait_first_connect()
            try:
                told = json.dumps(await Host(proxy, "modern").call("locked__whoami", {"echo": echo}))
            except RpcError as error:
                told = f"{error} {error.data}"
            logged.error("it told %s", token)
    finally:
        logged.removeHandler(handler)

    # A result that is no failure passes as it came, whatever it holds: it is the server's to say.
    assert (token in told) == (echo == "result")
    assert ("[redacted access token]" in told) == (echo != "result")
    assert token not in log.getvalue()


async def test_a_server_over_sse_names_the_command_too(protected: Protected, tmp_path: Path) -> None:
    config = load(configuration(tmp_path, protected, 'transport = "sse"\n'), environ={})
    async with open_proxy(config) as proxy:
        await proxy.wait_first_connect()

        assert "run: mcp-context-proxy login locked" in proxy.fleet.clients["locked"].cause


async def test_a_configured_authorization_header_is_not_replaced(
    protected: Protected, tmp_path: Path
) -> None:
    token = protected.issuer.issue("by-hand", [], protected.url).access_token
    more = f'headers = {{ Authorization = "Bearer {token}" }}\n'
    async with open_proxy(load(configuration(tmp_path, protected, more), environ={})) as proxy:
        await proxy.wait_first_connect()
        assert (await _called(proxy))["content"][0]["text"] == "someone"
        protected.issuer.expire_all()
        refused = await Host(proxy, "modern").call("locked__whoami")

    assert "401" in refused["content"][0]["text"]


async def test_a_login_that_ends_at_run_time_is_reported_to_the_model_and_others_go_on(
    protected: Protected, tmp_path: Path
) -> None:
    config = load(configuration(tmp_path, protected), environ={})
    await logged_in(config.servers["locked"])
    async with open_proxy(config) as proxy:
        await proxy.wait_first_connect()
        await _called(proxy)
        await protected.issuer.revoke_token(None)  # type: ignore[arg-type]
        told = await Host(proxy, "modern").call("locked__whoami")

        assert told["isError"]
        assert "mcp-context-proxy login locked" in told["content"][0]["text"]
        await logged_in(config.servers["locked"])
        assert (await _called(proxy))["content"][0]["text"] == "someone"


@pytest.mark.parametrize("needs", ['"files:write"', "files:write"])
async def test_a_missing_scope_is_reported_with_the_setting_that_has_it_beside_the_others(
    protected: Protected, tmp_path: Path, needs: str
) -> None:
    protected.scopes = "read offline_access"
    config = load(configuration(tmp_path, protected), environ={})
    await logged_in(config.servers["locked"])
    async with open_proxy(config) as proxy:
        await proxy.wait_first_connect()
        await _called(proxy)
        protected.needs = needs
        told = await Host(proxy, "modern").call("locked__whoami")

    assert told["isError"]
    setting = 'oauth.scope = "read offline_access files:write" under servers.locked'
    for part in ("'files:write'", setting, "mcp-context-proxy login locked"):
        assert part in told["content"][0]["text"]


async def _called(proxy: Proxy) -> Any:
    host = Host(proxy, "modern")
    with anyio.fail_after(20):
        while (result := await host.call("locked__whoami")).get("isError"):  # noqa: ASYNC110 - a back-off
            await anyio.sleep(0.05)
    return result
