"""ZoneFacts: what a zone says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from protect.checks import printable
from protect.state.node import Node
from xenpod_proto.channel.v1 import channel_pb2

_TEXT = 256


@dataclass(frozen=True, slots=True)
class Facts:
    """Bounded and printable; true only as far as the zone is."""

    kernel_release: str
    kernel_version: str
    hostname: str
    hypervisor_type: str
    pid1: str
    uptime_ns: int
    cpus: int
    cgroup: str
    agent_version: str


async def facts(node: Node, zone_id: str) -> Facts:
    runtime = node.zone("ask zone", zone_id)
    link = await runtime.agent()
    request = channel_pb2.Request(get_facts=channel_pb2.GetFacts())
    reply = await runtime.end.guard(f"zone {zone_id}", link.call(request, node.config.timeouts.call))
    untrusted = reply.facts
    return Facts(
        kernel_release=printable(untrusted.kernel_release, _TEXT),
        kernel_version=printable(untrusted.kernel_version, _TEXT),
        hostname=printable(untrusted.hostname, _TEXT),
        hypervisor_type=printable(untrusted.hypervisor_type, _TEXT),
        pid1=printable(untrusted.pid1, _TEXT),
        uptime_ns=untrusted.uptime_ns,
        cpus=untrusted.cpus,
        cgroup=printable(untrusted.cgroup, _TEXT),
        agent_version=printable(runtime.zone.agent_version, _TEXT),
    )
