"""Makes a private CNI configuration: a bridge and a subnet for no other use on this machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pyroute2 import AsyncIPRoute

_ROUTES = Path("/proc/net/route")
_LINKS = Path("/sys/class/net")
# 10.64.0.0/10 in /24 steps: large enough for several checkouts, away from the usual 10.0 and 10.88.
_POOL = IPv4Network("10.64.0.0/10")


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge by name, and the addresses of the pods behind it."""

    name: str
    subnet: IPv4Network


def bridge_for(owner: str, prefix: int = 24) -> Bridge:
    """The bridge of ``owner`` (e.g. a folder): always the same, unless another bridge takes its subnet.

    ``prefix``: the prefix length of the subnet, below 24 for more than 250 pods.
    """
    seed = hashlib.sha256(owner.encode()).digest()
    name = f"xp{seed.hex()[:10]}"
    taken = [] if (_LINKS / name).exists() else _routed()
    count = 1 << (prefix - _POOL.prefixlen)
    size = 1 << (32 - prefix)
    first = int.from_bytes(seed[-4:]) % count
    for step in range(count):
        subnet = IPv4Network((int(_POOL[0]) + ((first + step) % count) * size, prefix))
        if not any(subnet.overlaps(route) for route in taken):
            return Bridge(name, subnet)
    raise RuntimeError(f"every /{prefix} of {_POOL} is routed already")


def write_conflist(
    folder: Path, bridge: Bridge, addresses: Path, *, masquerade: bool, host_ports: bool = False
) -> None:
    """Write ``folder/10-xenpod.conflist``; host-local keeps its leases under ``addresses``.

    With ``masquerade`` pods reach the host's networks, and host ports work; with ``host_ports`` only these
    work (iptables rules).
    """
    plugins: list[dict[str, object]] = [
        {
            "type": "bridge",
            "bridge": bridge.name,
            "isGateway": True,
            "ipMasq": masquerade,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": str(bridge.subnet)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(addresses),
            },
        }
    ]
    if masquerade or host_ports:
        plugins.append({"type": "portmap", "capabilities": {"portMappings": True}})
    folder.mkdir(parents=True, exist_ok=True)
    conflist = {"cniVersion": "1.0.0", "name": bridge.name, "plugins": plugins}
    (folder / "10-xenpod.conflist").write_text(json.dumps(conflist, indent=2) + "\n")


async def remove_bridge(bridge: Bridge) -> None:
    """Delete the bridge, left behind by the bridge plugin; a missing bridge succeeds."""
    async with AsyncIPRoute() as netlink:
        for index in await netlink.link_lookup(ifname=bridge.name):
            await netlink.link("del", index=index)


def _routed() -> list[IPv4Network]:
    """The routed networks, without the default route.  proc(5): little-endian hexadecimal."""
    routes = []
    for line in _ROUTES.read_text().splitlines()[1:]:
        columns = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(columns[n]), "little") for n in (1, 7))
        if mask:
            routes.append(IPv4Network((destination & mask, str(IPv4Address(mask)))))
    return routes
