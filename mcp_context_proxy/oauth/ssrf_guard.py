"""Guard against server-side request forgery: a server may lead no nearer to this machine than it is itself.

The authorization server is found by discovery: a server names URLs, and those name more. A server elsewhere
could thereby have this machine connect to addresses that only this machine can reach. So each host is
resolved once, its addresses are checked, and the connection is made to a checked address: a name that
resolves to something else a moment later (DNS rebinding) has no effect. Hosts that the configuration names
are connected to wherever they are.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final, TypeAlias
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.abc
import httpx2
from mcp.client.auth import OAuthFlowError

from mcp_context_proxy.config import AuthConfig, ServerConfig

Address: TypeAlias = IPv4Address | IPv6Address

METADATA: Final = frozenset(
    ipaddress.ip_address(address)
    for address in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Addresses at which clouds give a machine its own credentials, beside the link-local ones."""

LOCAL_TRANSLATION: Final = IPv6Network("64:ff9b:1::/48")
"""Prefix of addresses that a translator of this machine's own network leads anywhere in IPv4 (RFC 8215)."""

TRANSLATED: Final = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    LOCAL_TRANSLATION,
    IPv6Network("::ffff:0:0:0/96"),  # SIIT
    IPv6Network("::/96"),  # IPv4-compatible
)
"""Prefixes of IPv6 addresses that hold an IPv4 address in their last four bytes."""


class NetworkReach(IntEnum):
    """Nearness of an address to this machine."""

    PUBLIC = 0
    PRIVATE = 1
    """An address in this machine's own networks."""
    LOOPBACK = 2
    """An address of this machine itself."""
    NOWHERE = 3
    """An address never allowed: link-local, multicast, or a cloud's metadata service."""


class Destinations:
    """Addresses that may be connected to on behalf of one server, or of the issuer of clients' tokens."""

    def __init__(self, config: ServerConfig | AuthConfig, reach: NetworkReach = NetworkReach.PUBLIC) -> None:
        """Allow the hosts of the configuration, and others no nearer than `reach`."""
        if isinstance(config, AuthConfig):
            urls = (config.issuer, config.jwks_url)
        else:
            urls = (config.url, None if config.oauth is None else config.oauth.issuer)
        self._configured = {_host(url) for url in urls if url}
        self.reach = reach

    def heard_from(self, answer: httpx2.Response) -> None:
        """Allow addresses as near as a configured host, judged by the connection it responded on.

        The address that its name resolves to is no evidence: the owner of the name can choose any.
        """
        stream = answer.extensions.get("network_stream")
        peer = None if stream is None else stream.get_extra_info("server_addr")
        url = answer.request.url
        if peer and _host(url) in self._configured and not _through_proxy(url):
            found = _reach(ipaddress.ip_address(peer[0].partition("%")[0]))
            # A link-local host is in this network, and not this machine.
            self.reach = max(self.reach, NetworkReach.PRIVATE if found is NetworkReach.NOWHERE else found)

    async def pinned(self, request: httpx2.Request) -> list[httpx2.Request]:
        """Return the request once for each allowed address of its host.

        Raises:
            OAuthFlowError: no address is allowed.
            OSError: the host is not known.
        """
        url = request.url
        if _host(url) in self._configured:
            return [request]
        literal = True
        try:
            found = [ipaddress.ip_address(url.host.partition("%")[0])]
        except ValueError:
            literal = False
            if _through_proxy(url):
                # The HTTP proxy of the network resolves a name, and connects. An address in another spelling,
                # such as 127.1, is no name.
                with suppress(OSError):
                    self._allowed(url, [IPv4Address(socket.inet_aton(url.host))])
                return [request]
            name = url.raw_host.decode("ascii")
            resolved = await anyio.getaddrinfo(name, url.port, type=socket.SOCK_STREAM)
            addresses = (ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in resolved)
            found = list(dict.fromkeys(addresses))
        allowed = self._allowed(url, found)
        return [request] if literal else [_to(address, request) for address in allowed]

    def _allowed(self, url: httpx2.URL, found: Sequence[Address]) -> list[Address]:
        """Return those of the addresses of a host that may be connected to.

        Raises:
            OAuthFlowError: there are none.
        """
        allowed = [address for address in found if _reach(address) <= self.reach]
        if not allowed:
            where = ", ".join(str(address) for address in found) or "nowhere"
            at = "" if where == url.host else f" ({where})"
            raise OAuthFlowError(
                f"it leads to {url.host}{at}, an address nearer to this machine than its own; where that is "
                "meant, set oauth.issuer to its authorization server, or auth.jwks_url to the keys"
            )
        return allowed


def _host(url: str | httpx2.URL) -> str:
    return httpx2.URL(url).host.rstrip(".").lower()


def _to(address: Address, request: httpx2.Request) -> httpx2.Request:
    """Return the request to one address; its headers and its TLS handshake still name the host."""
    extensions = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        content=request.content,
        extensions=extensions,
    )


def _reach(address: Address) -> NetworkReach:
    """Return the nearest of an address and the IPv4 addresses that it stands for."""
    if isinstance(address, IPv4Address):
        return _reach_of(address)
    if address.ipv4_mapped is not None:
        return _reach_of(address.ipv4_mapped)
    # 6to4 and Teredo.
    meant = [address, address.sixtofour, *(address.teredo or ())]
    if any(address in prefix for prefix in TRANSLATED):
        meant.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return max(_reach_of(each) for each in meant if each is not None)


def _reach_of(address: Address) -> NetworkReach:
    if address in METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return NetworkReach.NOWHERE
    if address.is_loopback:
        return NetworkReach.LOOPBACK
    of_a_site = isinstance(address, IPv6Address) and (address.is_site_local or address in LOCAL_TRANSLATION)
    return NetworkReach.PUBLIC if address.is_global and not of_a_site else NetworkReach.PRIVATE


def _through_proxy(url: httpx2.URL) -> bool:
    proxies = getproxies()
    return (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.host)
