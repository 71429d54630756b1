"""Attacks during a login."""

from __future__ import annotations

import subprocess

import anyio
import anyio.to_thread
import httpx2
from attacked import (
    HIDDEN,
    Attacked,
    attack,
    hides,
)
from support.authorization import Protected, protected_server


async def login(at: Attacked, protected: Protected) -> str:
    """Start a login as a person does, and return the text in the terminal."""
    config = at.folder / "config.toml"
    config.write_text(f'[store]\npath = "memory"\n[servers.locked]\nurl = "{protected.url}"\n')
    command = at.command(config, "login", "locked", "--no-browser")
    said = b""
    async with await anyio.open_process(command, env=at.environment, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with anyio.move_on_after(20):
            async for chunk in process.stdout:
                said += chunk
                if b"/authorize?" in said and said.endswith(b"\n"):
                    await anyio.sleep(0.3)
                    await _poison(said.decode())
                    break
        with anyio.move_on_after(1):
            async for chunk in process.stdout:
                said += chunk
        if process.returncode is None:
            process.kill()
    return said.decode()


async def _poison(said: str) -> None:
    """Tell the callback, as any page or program could, a refusal that hides something."""
    from urllib.parse import parse_qs, urlsplit

    address = next(word for word in said.split() if "/authorize?" in word)
    back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
    params = {"error": f"no{HIDDEN}pe", "error_description": f"no{HIDDEN}pe", "state": "wrong"}
    async with httpx2.AsyncClient() as page:
        try:
            await page.get(back, params=params, headers={"host": "evil.example"})
        except httpx2.HTTPError:
            return


@attack("During a login a page of another host sends the callback an error with terminal escapes.")
async def callback(at: Attacked) -> str:
    async with protected_server() as protected:
        said = await login(at, protected)
    return (
        f"the login {'is ended by it' if 'pe' in said[said.index('state=') :] else 'goes on'}; {hides(said)}"
    )


@attack("The authorization server does not say that it supports PKCE.")
async def pkce(at: Attacked) -> str:
    async with protected_server() as protected:
        protected.issuer.pkce_methods = None
        said = await login(at, protected)
    return "the login goes on" if "/authorize?" in said else f"refused: {said.strip()[:150]}"


@attack("The server's own metadata is broken, so that tokens would not be bound to it (`resource`).")
async def metadata(at: Attacked) -> str:
    async with protected_server() as protected:
        protected.metadata = (b"{broken", "application/json")
        said = await login(at, protected)
    if "/authorize?" not in said:
        return f"refused: {said.strip()[:150]}"
    return "the login goes on " + ("with" if "resource=" in said else "without") + " `resource`"


@attack("A server asks for the scope `everything`: is the person told, and of the authorization server?")
async def scope(at: Attacked) -> str:
    async with protected_server() as protected:
        protected.scopes = "everything"
        said = await login(at, protected)
    outside = " ".join(line for line in said.splitlines() if "/authorize?" not in line)
    told = [word for word in ("everything", protected.issuer.url) if word in outside]
    return f"told: {', '.join(told) or 'neither'}"
