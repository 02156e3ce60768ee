"""Network interfaces of fake domains: veth pairs with one end in the zone's namespace."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

from pyroute2.netlink.exceptions import NetlinkError

from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainSpec
from protect.network import links
from protect.network.namespace import OWN, explain, in_namespace, opened
from protect.network.netlink import Netlink


def host_name(instance: str, domain: UUID, index: int) -> str:
    """Name of the host's end: at most 15 characters, and constant."""
    digest = sha256(f"{instance}/{domain}".encode()).hexdigest()
    return f"xv{digest[:9]}.{index}"


async def create_pairs(instance: str, spec: DomainSpec, pid: int) -> None:
    """Create the pairs with both ends in their namespaces; a later move would take far longer."""

    def work(netlink: Netlink) -> None:
        with opened(f"/proc/{pid}/ns/net") as zone, opened(spec.netns or OWN) as home:
            for index in range(spec.interfaces):
                links.add_veth(netlink, host_name(instance, spec.uuid, index), home, f"eth{index}", zone)

    try:
        await in_namespace(None, work)
    except NetlinkError as error:
        raise ToolstackError("create interface", spec.name, explain(error)) from error


async def remove_pairs(instance: str, spec: DomainSpec) -> None:
    """Remove the remaining pairs in the host's namespace.

    The kernel removes a pair with either end's namespace, after a short delay of its own.  An end in another
    namespace therefore disappears with the zone.
    """

    def work(netlink: Netlink) -> None:
        for index in range(spec.interfaces):
            links.delete(netlink, host_name(instance, spec.uuid, index))

    try:
        await in_namespace(None, work)
    except NetlinkError as error:
        raise ToolstackError("remove interface", spec.name, explain(error)) from error
