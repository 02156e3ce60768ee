"""Checks the addresses that a registry sends a pull to, by a token realm or a redirect.

A caller who names an image chooses the registry. The registry chooses the next host, and may receive that
host's answer back as a token. The check covers each address of a connection, not a name.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from daemonkit.faults import Denied
from images.registry.hosts import RegistryHost

_PORTS = {"http": 80, "https": 443}
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_UNIQUE_LOCAL = ipaddress.ip_network("fc00::/7")
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
# RFC 6052: the last 32 bits are an IPv4 address.
_NAT64 = IPv6Network("64:ff9b::/96")


class Reach(Enum):
    """From where an address can be reached."""

    PUBLIC = "a public"
    PRIVATE = "a private"
    SHARED = "a shared"
    LOOPBACK = "a loopback"
    LINK_LOCAL = "a link-local"
    OTHER = "a special"


_Address = IPv4Address | IPv6Address
# Networks whose hosts belong together: a registry and its token service may share the network.
_NETWORKS = (Reach.PRIVATE, Reach.SHARED)


class Targets:
    """The rule for one configured host of a registry; shared by all threads of the conversation.

    allowed: see ImageSettings.private_targets.
    """

    def __init__(self, host: RegistryHost, allowed: Sequence[str]) -> None:
        self._own = endpoint(host.scheme, host.netloc)
        self._networks = [network for network in map(_network, allowed) if network is not None]
        self._names = {name.lower() for name in allowed if _network(name) is None}
        self._lock = threading.Lock()
        self._met: set[_Address] = set()
        if _is_literal(self._own[0]):
            self._met.add(parsed(self._own[0]))

    def is_own(self, name: str, port: int | None) -> bool:
        """Whether this is the configured host itself."""
        return (_plain(name), port) == self._own

    def met(self, address: str) -> None:
        """Record an address of the configured host itself, after a connection."""
        with self._lock:
            self._met.add(parsed(address))

    def check(self, name: str, address: str) -> None:
        """Raise Denied unless the registry may send the pull to this address of ``name``."""
        target = parsed(address)
        reach = reach_of(target)
        if reach is Reach.PUBLIC or _plain(name) in self._names:
            return
        if any(target in network for network in self._networks if network.version == target.version):
            return
        with self._lock:
            met = set(self._met)
        # All addresses of the host count: a name server may return a different address each time.
        if met == {target} or (reach in _NETWORKS and met and {reach_of(one) for one in met} == {reach}):
            return
        cause = f"the registry sends us to {reach.value} address, {address}, which is not its own"
        hint = "if it may, name the host or its network in images.private_targets of cri.toml"
        raise Denied("pull", name[:255], cause, hint)

    def check_literal(self, url: str) -> None:
        """The same for a URL for a proxy, if the URL contains an address.

        A proxy looks up names itself; the proxy has to restrict the resulting addresses.
        """
        parts = urlsplit(url)
        name = parts.hostname or ""
        if (_plain(name), parts.port or _PORTS.get(parts.scheme)) == self._own:
            return
        if _plain(name) == "localhost":
            self.check(name, "127.0.0.1")
        elif _is_literal(name):
            self.check(name, name)


def endpoint(scheme: str, netloc: str) -> tuple[str, int | None]:
    """Host and port of a URL."""
    parts = urlsplit(f"{scheme}://{netloc}")
    return _plain(parts.hostname or ""), parts.port or _PORTS.get(scheme)


Origin = tuple[str, str, int | None]
"""Scheme, host and port, in normal form: equal origins may see the same credentials."""


def origin(url: str) -> Origin:
    """The origin of a URL."""
    parts = urlsplit(url)
    return parts.scheme, *endpoint(parts.scheme, parts.netloc)


def parsed(address: str) -> _Address:
    """An address in normal form; an IPv6 address that embeds an IPv4 address becomes the IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found
    if found in _NAT64 or int(found) >> 32 == 0 and int(found) > 1:
        return IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or found


def reach_of(address: _Address) -> Reach:
    """From where the address can be reached; PUBLIC only if the registries of IANA say so."""
    if address.is_loopback:
        return Reach.LOOPBACK
    if address.is_link_local:
        return Reach.LINK_LOCAL
    networks = _PRIVATE if address.version == 4 else (_UNIQUE_LOCAL,)
    if any(address in network for network in networks):
        return Reach.PRIVATE
    if address.version == 4 and address in _SHARED:
        return Reach.SHARED
    if address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified):
        return Reach.PUBLIC
    return Reach.OTHER


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _is_literal(name: str) -> bool:
    try:
        parsed(name)
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    return name.lower().strip("[]").rstrip(".")
