"""Network interfaces of fake domains: veth pairs with one end born in the zone's namespace."""

from __future__ import annotations

import errno
import os
from hashlib import sha256
from uuid import UUID

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from protect.errors import ToolstackError
from protect.network.namespace import explain, in_namespace


def host_name(instance: str, domain: UUID, index: int) -> str:
    """Name of the host's end: at most 15 characters, the same whenever asked."""
    digest = sha256(f"{instance}/{domain}".encode()).hexdigest()
    return f"xv{digest[:9]}.{index}"


async def create(instance: str, domain: UUID, pid: int, count: int) -> None:
    """Make the pairs; the zone's ends are eth0, eth1, ..."""

    def work(netlink: IPRoute) -> None:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for index in range(count):
                name, peer = host_name(instance, domain, index), f"eth{index}"
                netlink.link("add", ifname=name, kind="veth", peer={"ifname": peer, "net_ns_fd": namespace})
        finally:
            os.close(namespace)

    try:
        await in_namespace(None, work)
    except NetlinkError as error:
        raise ToolstackError("create interface", str(domain), explain(error)) from error


async def remove(instance: str, domain: UUID, count: int) -> None:
    """Remove what is left of the pairs here.

    A pair goes by itself when either end's namespace does, so an end that was moved elsewhere
    follows the zone; only the kernel's own delay is between.
    """

    def work(netlink: IPRoute) -> None:
        for index in range(count):
            try:
                netlink.link("del", ifname=host_name(instance, domain, index))
            except NetlinkError as error:
                if error.code != errno.ENODEV:
                    raise

    try:
        await in_namespace(None, work)
    except NetlinkError as error:
        raise ToolstackError("remove interface", str(domain), explain(error)) from error
