"""Devices of the host in zones: permissions, a single zone at a time, records before and after."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Denied, Exhausted, Invalid, Missing, Refused
from protect.assembly import Assembly
from protect.config import HostConfig, NamedDevice, ZoneLimits
from protect.model.container import WorkloadSpec
from protect.model.errors import ToolstackError
from protect.model.toolstack import Capabilities, Mode
from protect.model.volume import DeviceRequest, ZoneDevice
from protect.state.records import of_zone, zone
from tests.support.protect.memory_toolstack import MemoryDomain, MemoryToolstack
from tests.support.protect.protect_node import running, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

HOST = HostConfig(
    devices={
        "fast": NamedDevice("/dev/nvme0n1"),
        "model": NamedDevice("/dev/nvme1n1", readonly=True),
        "special": NamedDevice("/dev/nvme2n1", profiles=("gpu",)),
        "card": NamedDevice("0000:65:00.0"),
    }
)


@pytest.fixture
async def node(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    """With the zones z1 and z2."""
    toolstack.can = Capabilities(iommu=True)
    async with running(tmp_path, toolstack, host=HOST) as protectd:
        for name in ("z1", "z2"):
            await protectd.launcher.launch(zone_spec(name))
        yield protectd


async def acquire(protectd: Assembly, zone_id: str, name: str, user: str = "", **more: bool) -> ZoneDevice:
    runtime = protectd.registry.zones[zone_id]
    by = {"host_path": name} if name.startswith("/") else {"name": name}
    [found] = await protectd.device_search.find(runtime, [DeviceRequest(**by, **more)])  # type: ignore[arg-type]
    return await protectd.attachment.acquire(runtime, found, user)


def spec(folder: Path, workload_id: str, *devices: DeviceRequest, config: object = None) -> WorkloadSpec:
    made = replace(workload_spec(folder, workload_id), devices=devices)
    return made if config is None else replace(made, oci_config=json.dumps(config).encode())


def recorded(protectd: Assembly, zone_id: str = "z1") -> list[tuple[str, bool]]:
    """The devices of the zone's record, equal to the ledger's."""
    saved = {one.id: one for one in protectd.registry.store.load().zones}[zone_id]
    assert saved.devices == protectd.registry.zones[zone_id].zone.devices
    return [(one.label, one.ready) for one in saved.devices]


def has(toolstack: MemoryToolstack, zone_id: str = "z1") -> list[str]:
    """The hypervisor's writable and exclusive disks, and functions, of the zone."""
    domain = toolstack.of_zone(zone_id)
    disks = [f"{one.path}{' ro' if one.readonly else ''}" for one in domain.disks.values() if one.exclusive]
    return sorted([*disks, *domain.functions])


def told(domain: MemoryDomain) -> dict[str, object]:
    """The last OCI configuration for the agent."""
    asked = [one.create_container for one in domain.agent.requests if one.HasField("create_container")]
    made: dict[str, object] = json.loads(asked[-1].config_json)
    return made


async def test_device_has_a_single_zone_until_the_zone_is_dead(
    node: Assembly, toolstack: MemoryToolstack
) -> None:
    """Under any name; a dead zone has no device any more."""
    await acquire(node, "z1", "fast")
    assert has(toolstack) == ["/dev/nvme0n1"]
    for name in ("fast", "/dev/nvme0n1"):
        with pytest.raises(Refused, match="zone z1 has it"):
            await acquire(node, "z2", name)
    assert (recorded(node), recorded(node, "z2")) == ([("fast", True)], [])
    toolstack.kill("z1")
    await until(lambda: node.registry.zones["z1"].end)
    async with node.registry.zones["z1"].lock:
        await acquire(node, "z2", "fast")
    assert has(toolstack, "z2") == ["/dev/nvme0n1"]


async def test_several_zones_may_have_a_read_only_device(node: Assembly, toolstack: MemoryToolstack) -> None:
    for zone_id in ("z1", "z2"):
        await acquire(node, zone_id, "model")
    assert has(toolstack) == has(toolstack, "z2") == ["/dev/nvme1n1 ro"]
    with pytest.raises(Refused, match="z1 has it, and not both only read it|read-only"):
        await acquire(node, "z2", "/dev/nvme1n1")
    await node.attachment.detach(node.registry.zones["z1"], "model", force=False)
    with pytest.raises(Refused, match="has it read-only"):
        await acquire(node, "z2", "/dev/nvme1n1")


async def test_device_is_refused_to_zones_of_other_profiles(
    node: Assembly, toolstack: MemoryToolstack
) -> None:
    with pytest.raises(Denied, match=r"profile default.*host\.devices\.special\.profiles"):
        await acquire(node, "z1", "special")
    with pytest.raises(Missing, match="card, fast, model, special"):
        await acquire(node, "z1", "nothing")
    await node.launcher.launch(replace(zone_spec("z3"), profile="gpu", device_names=("special", "fast")))
    assert has(toolstack, "z3") == ["/dev/nvme0n1", "/dev/nvme2n1"]
    for names, fault in ((("special",), Denied), (("nothing",), Missing), (("fast",), Refused)):
        with pytest.raises(fault):
            await node.launcher.launch(replace(zone_spec("z4"), device_names=names))
        assert "z4" not in node.registry.zones and not [
            one for one in toolstack.domains.values() if one.spec.environment["XENPOD_ZONE"] == "z4"
        ]
    await node.removal.destroy("z3")
    await node.launcher.launch(replace(zone_spec("z4"), device_names=("fast",)))


async def test_pci_functions_are_attached_too(node: Assembly, toolstack: MemoryToolstack) -> None:
    assert toolstack.of_zone("z1").spec.passthrough
    await acquire(node, "z1", "card", "w1")
    assert has(toolstack) == ["0000:65:00.0"] and recorded(node) == [("card", True)]
    with pytest.raises(Refused, match="zone z1 has it"):
        await acquire(node, "z2", "card")
    await node.attachment.release(node.registry.zones["z1"], "w1")
    assert has(toolstack) == [] == recorded(node)
    await node.launcher.launch(replace(zone_spec("z3"), mode=Mode.PVH))
    assert not toolstack.of_zone("z3").spec.passthrough


async def test_a_workload_has_nodes_and_the_last_workload_detaches(
    node: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    volume = DeviceRequest(host_path="/dev/vol", container_path="/dev/xvda", uid=7, gid=8)
    first = await node.creation.create(spec(tmp_path, "w1", volume))
    config = told(toolstack.of_zone("z1"))
    assert config["linux"] == {
        "devices": [
            {
                "path": "/dev/xvda",
                "type": "b",
                "major": 202,
                "minor": 16,
                "fileMode": 0o60660,
                "uid": 7,
                "gid": 8,
            }
        ],
        "resources": {"devices": [{"allow": True, "type": "b", "major": 202, "minor": 16, "access": "rwm"}]},
    }
    assert [disk.vdev for disk in first.disks] == ["xvda"]
    assert [(one.vdev, one.users) for one in node.registry.zones["z1"].zone.devices] == [("xvdb", ("w1",))]
    await node.creation.create(spec(tmp_path, "w2", replace(volume, readonly=True)))
    assert told(toolstack.of_zone("z1"))["linux"]["resources"]["devices"][0]["access"] == "rm"  # type: ignore[index]
    await node.workload_removal.delete("w1")
    assert has(toolstack) == ["/dev/vol"]
    await node.workload_removal.delete("w2")
    assert has(toolstack) == [] == recorded(node)
    gone = [one.find_device for one in toolstack.of_zone("z1").agent.requests if one.HasField("find_device")]
    assert gone[-1] == pb.FindDevice(name="xvdb", gone=True)


async def test_workload_with_the_zones_dev_has_the_zones_device_node(
    node: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    config = {"mounts": [{"destination": "/dev", "type": "bind", "source": "/dev"}], "linux": {}}
    volume = DeviceRequest(host_path="/dev/vol", container_path="/dev/block")
    await node.creation.create(spec(tmp_path, "w1", volume, config=config))
    mount = told(toolstack.of_zone("z1"))["mounts"][-1]  # type: ignore[index]
    assert (mount["source"], mount["destination"], mount["type"]) == ("/dev/xvdb", "/dev/block", "bind")


@pytest.mark.parametrize(
    "config",
    [{"linux": {"namespaces": [{"type": "user"}]}}, {"linux": 1}, {"mounts": 1}, {"linux": {"devices": {}}}],
)
async def test_workload_with_a_config_unfit_for_device_nodes_is_refused(
    node: Assembly, toolstack: MemoryToolstack, tmp_path: Path, config: object
) -> None:
    """Nothing stays attached, and nothing recorded."""
    volume = DeviceRequest(host_path="/dev/vol", container_path="/dev/block")
    with pytest.raises(Invalid):
        await node.creation.create(spec(tmp_path, "w1", volume, config=config))
    assert has(toolstack) == [] == recorded(node)
    assert "w1" not in node.registry.workloads


@pytest.mark.parametrize("step", ["attach_disk", "find_device"])
async def test_a_failed_attach_leaves_nothing(node: Assembly, toolstack: MemoryToolstack, step: str) -> None:
    if step == "attach_disk":
        toolstack.failing.add(step)
    else:
        toolstack.of_zone("z1").agent.errors[step] = pb.Error(code=12, message="an older agent")
    with pytest.raises(Exception, match="on purpose|older agent"):
        await acquire(node, "z1", "fast")
    assert has(toolstack) == [] == recorded(node)
    toolstack.failing.clear()
    await acquire(node, "z2", "fast")


async def test_device_of_a_failed_undo_is_detached_before_the_next_try(
    node: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.failing |= {"attach_disk", "detach_disk"}
    with pytest.raises(ToolstackError):
        await acquire(node, "z1", "fast")
    assert recorded(node) == [("fast", False)]
    with pytest.raises(Refused, match="zone z1 has it"):
        await acquire(node, "z2", "fast")
    toolstack.failing.clear()
    await acquire(node, "z1", "fast")
    assert recorded(node) == [("fast", True)]


async def test_a_device_in_use_stays_unless_forced(
    node: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    zone1 = node.registry.zones["z1"]
    await node.creation.create(spec(tmp_path, "w1", DeviceRequest(name="fast", container_path="/dev/fast")))
    with pytest.raises(Refused, match="workload w1 of zone z1 uses it"):
        await node.attachment.detach(zone1, "fast", force=False)
    assert has(toolstack) == ["/dev/nvme0n1"]
    assert await node.attachment.detach(zone1, "fast", force=True)
    assert has(toolstack) == []
    await acquire(node, "z1", "fast")
    toolstack.of_zone("z1").agent.device_in_use = True
    with pytest.raises(Refused, match="has it mounted"):
        await node.attachment.detach(zone1, "/dev/nvme0n1", force=False)
    assert await node.attachment.detach(zone1, "nothing", force=False)
    toolstack.of_zone("z1").agent.device_in_use = False
    toolstack.of_zone("z1").agent.errors["find_device"] = pb.Error(code=4, message="it did not go")
    assert not await node.attachment.detach(zone1, "fast", force=True)
    assert has(toolstack) == [] == recorded(node)


async def test_disks_and_devices_share_a_limit(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, limits=ZoneLimits(disks_per_zone=2), host=HOST) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        await acquire(protectd, "z1", "fast")
        with pytest.raises(Exhausted, match=r"2 disks, as many as it may.*limits\.disks_per_zone"):
            await acquire(protectd, "z1", "model")


@pytest.mark.parametrize("ready", [False, True])
async def test_after_a_restart_records_are_settled(
    tmp_path: Path, toolstack: MemoryToolstack, ready: bool
) -> None:
    """A half attached device and unused devices are detached; the rest stays."""
    async with running(tmp_path, toolstack, host=HOST) as protectd:
        await protectd.launcher.launch(zone_spec())
        for name in ("fast", "model"):
            await acquire(protectd, "z1", name)
        await acquire(protectd, "z1", "/dev/vol", "a workload that is gone")
        runtime = protectd.registry.zones["z1"]
        half = tuple(replace(one, ready=ready or one.name != "fast") for one in runtime.zone.devices)
        protectd.registry.update_zone(runtime, replace(runtime.zone, devices=half))
    async with running(tmp_path, toolstack, host=HOST) as protectd:
        kept = ["/dev/nvme0n1", "/dev/nvme1n1 ro"] if ready else ["/dev/nvme1n1 ro"]
        await until(lambda: has(toolstack) == kept)
        await until(lambda: len(recorded(protectd)) == len(kept))
        assert all(settled for _, settled in recorded(protectd))


async def test_a_destroy_waits_for_an_attach(node: Assembly, toolstack: MemoryToolstack) -> None:
    entered, go_on = toolstack.gate("attach_disk")
    attaching = asyncio.create_task(acquire(node, "z1", "fast"))
    await entered.wait()
    destroying = asyncio.create_task(node.removal.destroy("z1"))
    await until(lambda: node.registry.zones["z1"].end)
    go_on.set()
    with pytest.raises(Refused):
        await attaching
    await destroying
    assert "z1" not in node.registry.zones
    await acquire(node, "z2", "fast")


async def test_the_record_keeps_devices(node: Assembly) -> None:
    await acquire(node, "z1", "fast")
    await acquire(node, "z1", "card")
    with_devices = node.registry.zones["z1"].zone
    assert zone(json.loads(json.dumps(of_zone(with_devices)))) == with_devices
    assert "devices" not in of_zone(node.registry.zones["z2"].zone)
