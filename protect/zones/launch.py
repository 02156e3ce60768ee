"""CreateZone: admit, record, create, boot, greet, configure."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Exhausted, Exists, Fault
from daemonkit.logs import fields
from protect.model.zone import Zone, ZoneSpec, ZoneState
from protect.state.node import Node, ZoneRuntime, now_ns
from protect.state.store import Intent
from protect.tasks import undone, whole
from protect.toolstack.port import DomainSpec
from protect.zones import kernel
from protect.zones.deaths import epitaph
from protect.zones.destroy import dismantle
from protect.zones.events import ZoneEvents
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

INTENT = Intent("zone.create")

declare(
    "zone-create.recorded",
    "zone-create.sharing",
    "zone-create.domain-created",
    "zone-create.unpaused",
    "zone-create.connected",
    "zone-create.configured",
    "zone-create.running",
)


async def launch(node: Node, spec: ZoneSpec) -> Zone:
    """Make a running zone whose agent answers.  On failure nothing of it is left.

    Exists, Exhausted, Refused (destroyed or dead meanwhile), TooLate (does not boot), ToolstackError.
    """
    if spec.kernel:
        await asyncio.to_thread(kernel.check, spec.id, spec.kernel)
    runtime = admit(node, spec)
    return await node.tasks.conduct(_conduct(node, runtime), f"create zone {spec.id}")


def admit(node: Node, spec: ZoneSpec) -> ZoneRuntime:
    """Take the id, the memory and the record of a zone, at once or not at all."""
    if spec.id in node.zones:
        raise Exists("create zone", spec.id, "there is one already")
    if len(node.zones) >= node.config.limits.zones:
        raise Exhausted("create zone", spec.id, f"there are {len(node.zones)} zones, as many as limits.zones")
    node.ledger.admit(spec.id, spec.memory_bytes)
    runtime = ZoneRuntime(Zone(spec, uuid.uuid4(), ZoneState.CREATING, now_ns()))
    node.zones[spec.id] = runtime
    try:
        node.put_zone(runtime, runtime.zone, INTENT)
    except BaseException:
        node.ledger.release(spec.id)
        del node.zones[spec.id]
        raise
    checkpoint("zone-create.recorded")
    return runtime


async def _conduct(node: Node, runtime: ZoneRuntime) -> Zone:
    begin = time.monotonic()
    async with runtime.lock, AsyncExitStack() as undo:
        undo.push_async_callback(_undo, node, runtime)
        try:
            await runtime.end.guard(f"zone {runtime.id}", _boot(node, runtime))
        except Fault as fault:
            raise await epitaph(node, runtime, fault) from fault
        undo.pop_all()
    log.info("zone runs", extra=fields(zone=runtime.id, seconds=time.monotonic() - begin))
    return runtime.zone


async def _undo(node: Node, runtime: ZoneRuntime) -> None:
    await undone(dismantle(node, runtime), f"create zone {runtime.id}")


async def _boot(node: Node, runtime: ZoneRuntime) -> None:
    spec = runtime.zone.spec
    await whole(node.volumes.open(spec.id))
    checkpoint("zone-create.sharing")
    domain = await whole(node.toolstack.create(domain_spec(runtime.zone, node.volumes.shared(spec.id))))
    # In memory only: should we die here, the domain is found again by its uuid.
    runtime.zone = replace(runtime.zone, domain_id=domain)
    checkpoint("zone-create.domain-created")
    await whole(node.toolstack.unpause(domain))
    checkpoint("zone-create.unpaused")
    runtime.link = node.links(spec.id, lambda: node.toolstack.open_channel(domain), ZoneEvents(node, runtime))
    hello = await runtime.link.open(node.config.timeouts.boot)
    checkpoint("zone-create.connected")
    request = channel_pb2.Request(configure_zone=_configuration(spec))
    await runtime.link.call(request, node.config.timeouts.call)
    checkpoint("zone-create.configured")
    runtime.answering.set()
    facts = {"boot_id": hello.boot_id.hex(), "agent_version": hello.agent_version}
    node.put_zone(runtime, runtime.zone.to(ZoneState.RUNNING, **facts))
    checkpoint("zone-create.running")


def _configuration(spec: ZoneSpec) -> channel_pb2.ConfigureZone:
    asked = channel_pb2.ConfigureZone(hostname=spec.hostname, sysctls=dict(spec.sysctls))
    if spec.id_mapping:
        asked.id_mapping.host_id = spec.id_mapping.host_id
        asked.id_mapping.length = spec.id_mapping.length
    return asked


def domain_spec(zone: Zone, shared: Path) -> DomainSpec:
    """What the toolstack is asked for; the domain's name is for people, and unique."""
    spec = zone.spec
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in spec.name or spec.id)
    return DomainSpec(
        uuid=zone.uuid,
        name=f"{readable[:32]}.{zone.uuid.hex[:8]}",
        memory_bytes=spec.memory_bytes,
        vcpus=spec.vcpus,
        mode=spec.mode,
        interfaces=spec.interfaces,
        netns=spec.netns,
        environment={"XENPOD_ZONE": spec.id},
        shared=shared,
        kernel=spec.kernel,
    )
