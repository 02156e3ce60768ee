"""Sizes of running domains: duties of every toolstack, and the guest's view."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemonkit.faults import Exhausted, Invalid, Missing, Refused
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import DiskSpec, DomainId, DomainInfo
from tests.support.protect.stage import MIB, PATIENCE, Agent, Stage
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
NOBODY = DomainId(2_000_000_000)
INSIDE = "nproc; grep MemTotal /proc/meminfo"


async def size_of(agent: Agent, cpus: int = 0) -> pb.GuestSize:
    return (await agent.call(resize_zone=pb.ResizeZone(cpus=cpus))).size


async def info_of(stage: Stage, agent: Agent) -> DomainInfo:
    return next(info for info in await stage.toolstack.list() if info.id == agent.domain)


async def test_memory_grows_and_shrinks(stage: Stage) -> None:
    """Up to the maximum; the guest and the hypervisor see each step."""
    begin = stage.spec().memory_bytes
    agent = await stage.boot(memory_max_bytes=begin + 96 * MIB)
    assert (await info_of(stage, agent)).memory_bytes == begin
    first = (await size_of(agent)).memory_total_bytes
    assert 0 < first <= begin
    for more in (64 * MIB, 96 * MIB, 32 * MIB, 0):
        await stage.toolstack.set_memory(agent.domain, begin + more)

        async def reached(more: int = more) -> bool:
            seen = (await size_of(agent)).memory_total_bytes
            info = await info_of(stage, agent)
            return abs(seen - first - more) <= MIB and info.held_bytes <= begin + more == info.memory_bytes

        await until(reached, PATIENCE, agent.domain)


async def test_memory_is_hot_plugged_beyond_the_built_memory(stage: Stage) -> None:
    """Several of Linux' memory sections (128 MiB), and back; a second growth uses the same sections."""
    assert await stage.toolstack.hotplugs_memory(None)
    begin = stage.spec().memory_bytes
    agent = await stage.boot(hotplug_max_bytes=begin + 400 * MIB)
    first = (await size_of(agent)).memory_total_bytes
    for more in (50 * MIB, 400 * MIB, 0, 300 * MIB):
        await stage.toolstack.set_memory(agent.domain, begin + more)

        async def reached(more: int = more) -> bool:
            seen = (await size_of(agent)).memory_total_bytes
            info = await info_of(stage, agent)
            near = abs(seen - first - more) <= MIB + more // 64
            return near and info.held_bytes <= begin + more == info.memory_bytes

        await until(reached, PATIENCE, agent.domain)
    with pytest.raises(Invalid, match="created for at most"):
        await stage.toolstack.set_memory(agent.domain, begin + 401 * MIB)


async def test_memory_beyond_the_domains_or_the_hosts_maximum_is_refused(stage: Stage) -> None:
    begin = stage.spec().memory_bytes
    huge = (await stage.toolstack.physical_info()).free_memory_bytes + (1 << 30)
    info = await stage.create(memory_max_bytes=begin + 16 * MIB)
    for asked in (begin + 17 * MIB, huge):
        with pytest.raises(Invalid, match="created for at most"):
            await stage.toolstack.set_memory(info.id, asked)
    again = await stage.info(info.uuid)
    assert again is not None and again.memory_bytes == begin
    await stage.toolstack.destroy(info.id)
    for gone in (info.id, NOBODY):
        with pytest.raises(DomainGone):
            await stage.toolstack.set_memory(gone, begin)
        with pytest.raises(DomainGone):
            await stage.toolstack.set_vcpus(gone, 1)


async def test_memory_beyond_the_host_is_refused(stage: Stage) -> None:
    free = (await stage.toolstack.physical_info()).free_memory_bytes // MIB * MIB
    begin, most = free // 2, free + 512 * MIB
    info = await stage.create(memory_bytes=begin, memory_max_bytes=most)
    with pytest.raises(Exhausted, match="free"):
        await stage.toolstack.set_memory(info.id, most)
    again = await stage.info(info.uuid)
    assert again is not None and again.memory_bytes == begin


async def test_vcpus_come_and_go(stage: Stage) -> None:
    agent = await stage.boot(vcpus=1, vcpus_max=3)
    assert (await info_of(stage, agent)).vcpus == 3
    assert (await size_of(agent)).cpus == 1
    for count in (3, 2, 3, 1):
        await stage.toolstack.set_vcpus(agent.domain, count)

        async def reached(count: int = count) -> bool:
            seen = (await size_of(agent, count)).cpus
            return seen == count == (await info_of(stage, agent)).vcpus_online

        await until(reached, PATIENCE, agent.domain)
        assert (await agent.call(get_facts=pb.GetFacts())).facts.cpus == count
    for wrong in (0, 4):
        with pytest.raises(Invalid, match="are not 1 to 3"):
            await stage.toolstack.set_vcpus(agent.domain, wrong)


async def test_offline_vcpus_add_nothing_to_the_cap(stage: Stage) -> None:
    """A guest may start the vCPUs without a request."""
    info = await stage.create(vcpus=1, vcpus_max=4)
    await stage.toolstack.set_shares(info.id, CpuShares())
    assert (await stage.shares(info)).cap == 100
    await stage.toolstack.set_vcpus(info.id, 2)
    await stage.toolstack.set_shares(info.id, CpuShares(256, 500))
    assert (await stage.shares(info)).cap == 200
    await stage.toolstack.set_shares(info.id, CpuShares(256, 150))
    assert (await stage.shares(info)).cap == 150


async def test_a_size_outlives_the_daemon(stage: Stage) -> None:
    begin = stage.spec().memory_bytes
    info = await stage.create(vcpus_max=2, memory_max_bytes=begin + 32 * MIB)
    await stage.toolstack.set_memory(info.id, begin + 16 * MIB)
    await stage.toolstack.set_vcpus(info.id, 2)
    await stage.restart()
    again = await stage.info(info.uuid)
    assert again is not None and (again.memory_bytes, again.vcpus) == (begin + 16 * MIB, 2)
    await stage.toolstack.set_memory(info.id, begin + 32 * MIB)
    with pytest.raises(Invalid):
        await stage.toolstack.set_memory(info.id, begin + 33 * MIB)


async def test_a_container_sees_the_new_size(stage: Stage, images: tuple[Path, Path]) -> None:
    """Figures of nproc and /proc/meminfo, by the guest's kernel."""
    if not (await stage.toolstack.physical_info()).security_boundary:
        pytest.skip("the fake's zones share the host's kernel")
    begin = stage.spec().memory_bytes
    agent = await stage.boot(vcpus_max=2, memory_max_bytes=begin + 64 * MIB)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))

    async def seen(name: str) -> tuple[int, int]:
        code, output = await agent.run(name, "xvda", "/bin/sh", "-c", INSIDE)
        assert code == 0
        words = output.split()
        return int(words[0]), int(words[2]) * 1024

    cpus, memory = await seen("before")
    assert cpus == 1
    await stage.toolstack.set_memory(agent.domain, begin + 64 * MIB)
    await stage.toolstack.set_vcpus(agent.domain, 2)

    async def reached() -> bool:
        size = await size_of(agent, 2)
        return size.cpus == 2 and size.memory_total_bytes >= memory + 63 * MIB

    await until(reached, PATIENCE, agent.domain)
    cpus, grown = await seen("after")
    assert cpus == 2 and abs(grown - memory - 64 * MIB) <= MIB


async def test_memory_in_use_is_not_given_back(stage: Stage, images: tuple[Path, Path]) -> None:
    """Either set_memory refuses, or the hypervisor shows the domain above its target."""
    agent = await stage.boot()
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    before = await info_of(stage, agent)
    free = (await size_of(agent)).memory_available_bytes
    fill = f"dd if=/dev/zero of=/kept bs=1M count={free // MIB // 2}; echo done; sleep 1000"
    output = await agent.begin("w", "xvda", "/bin/sh", "-c", fill)
    await until(lambda: _said(output.data, b"done"), PATIENCE, fill)
    wanted = before.memory_bytes - free // MIB * MIB * 3 // 4
    try:
        await stage.toolstack.set_memory(agent.domain, wanted)
    except Refused as fault:
        assert "in use" in str(fault)
        assert (await info_of(stage, agent)).memory_bytes == before.memory_bytes
    else:
        assert (await info_of(stage, agent)).held_bytes > wanted
        await stage.toolstack.set_memory(agent.domain, before.memory_bytes)


async def _said(data: bytes, text: bytes) -> bool:
    return text in data


async def test_a_pool_of_cpus_is_used_or_refused(stage: Stage) -> None:
    wanted = stage.spec(cpupool="no-such-pool")
    with pytest.raises(Missing, match="no pool of CPUs no-such-pool"):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None
    assert (await stage.create(cpupool=stage.cpupool)).vcpus == 1
