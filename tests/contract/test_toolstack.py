"""Duties of every toolstack (protect/model/toolstack.py), on each toolstack of this host."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from daemonkit.faults import Exhausted, Exists, Invalid, Missing, Refused
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import (
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainInfo,
    DomainKernel,
    DomainState,
    Mode,
    ShutdownReason,
)
from protect.network.splice import splice
from protect.state.death import CONSOLE_BYTES, DeathKind, judge
from tests.support.protect.pod_network import MTU, PodNetwork
from tests.support.protect.stage import PATIENCE, Stage, soon
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
NOBODY = DomainId(2_000_000_000)
T = TypeVar("T")


# -- the life of a domain


async def test_cpu_shares_of_a_domain_are_held_across_a_restart(stage: Stage) -> None:
    """The cap counts all vCPUs together; a cap beyond their maximum is no cap."""
    info = await stage.create(vcpus=2)
    for given, held in (
        (CpuShares(256, 50), CpuShares(256, 50)),
        (CpuShares(64, 150), CpuShares(64, 150)),
        (CpuShares(512, 200), CpuShares(512, 200)),
        (CpuShares(512, 5000), CpuShares(512, 200)),
        (CpuShares(128), CpuShares(128, 200)),
    ):
        await stage.toolstack.set_shares(info.id, given)
        assert await stage.shares(info) == held
    await stage.toolstack.set_shares(info.id, CpuShares(512, 30))
    await stage.restart()
    assert await stage.shares(info) == CpuShares(512, 30)
    await stage.toolstack.destroy(info.id)
    for gone in (info.id, NOBODY):
        with pytest.raises(DomainGone):
            await stage.toolstack.set_shares(gone, CpuShares())


async def present(stage: Stage, info: DomainInfo) -> DomainInfo:
    """The domain's current facts."""
    now = await stage.info(info.uuid)
    assert now is not None
    return now


async def test_a_new_domain_is_paused_until_unpause(stage: Stage) -> None:
    info = await stage.create(vcpus=1)
    assert info.state is DomainState.PAUSED
    assert (info.memory_bytes, info.vcpus, info.shutdown_reason) == (stage.spec().memory_bytes, 1, None)
    connecting = asyncio.create_task(stage.connect(info.id))
    await asyncio.sleep(0.3)
    assert not connecting.done(), "its agent answers although it is paused"
    before = (await present(stage, info)).cpu_time_ns
    await stage.toolstack.unpause(info.id)
    agent = await connecting
    facts = (await agent.call(get_facts=pb.GetFacts())).facts
    assert facts.pid1 == "init"
    after = await present(stage, info)
    assert after.state is DomainState.RUNNING and after.cpu_time_ns > before


async def test_nothing_runs_in_a_domain_paused_again(stage: Stage) -> None:
    info = await stage.create(vcpus=1)
    await stage.toolstack.unpause(info.id)
    agent = await stage.connect(info.id)
    for _ in range(2):
        await stage.toolstack.pause(info.id)
    assert (await present(stage, info)).state is DomainState.PAUSED
    asking = asyncio.create_task(agent.call(get_facts=pb.GetFacts()))
    await asyncio.sleep(0.3)
    assert not asking.done(), "its agent answers although it is paused"
    for _ in range(2):
        await stage.toolstack.unpause(info.id)
    assert (await asking).facts.pid1 == "init"
    assert (await present(stage, info)).state is DomainState.RUNNING
    await stage.toolstack.pause(info.id)
    await stage.toolstack.destroy(info.id)
    assert await stage.info(info.uuid) is None


async def test_destroy_frees_everything_and_may_be_repeated(stage: Stage) -> None:
    info = await stage.create()
    await asyncio.gather(*(stage.toolstack.destroy(info.id) for _ in range(3)))
    assert await stage.info(info.uuid) is None
    await stage.toolstack.destroy(info.id)
    await stage.toolstack.destroy(NOBODY)


async def test_a_mark_is_kept_with_its_domain(stage: Stage) -> None:
    """A domain has its mark from its first moment, also after a restart; a domain without a mark can be
    claimed once.
    """
    marked, bare = await stage.create(mark='{"id": "a b"}'), await stage.create()
    assert (marked.mark, bare.mark) == ('{"id": "a b"}', "")
    claimed = await stage.toolstack.claim(bare.uuid, bare.name, "claimed")
    assert claimed is not None
    assert (claimed.id, claimed.name, claimed.mark) == (bare.id, bare.name, "claimed")
    assert await stage.toolstack.claim(stage.spec().uuid, "nobody", "x") is None
    for info, mark in ((marked, marked.mark), (bare, "claimed")):
        again = await stage.toolstack.claim(info.uuid, "other", "other")
        assert again is not None and (again.name, again.mark) == (info.name, mark)
    await stage.restart()
    found = {info.uuid: info.mark for info in await stage.toolstack.list()}
    assert (found[marked.uuid], found[bare.uuid]) == (marked.mark, "claimed")
    await stage.toolstack.destroy(bare.id)
    assert await stage.toolstack.claim(bare.uuid, bare.name, "claimed") is None


async def test_names_and_uuids_are_taken_once(stage: Stage) -> None:
    first = stage.spec()
    await stage.toolstack.create(first)
    with pytest.raises(Exists):
        await stage.toolstack.create(replace(stage.spec(), name=first.name))
    with pytest.raises(Exists):
        await stage.toolstack.create(replace(stage.spec(), uuid=first.uuid))
    wanted = [replace(stage.spec(), name="contract-same") for _ in range(3)]
    made = await asyncio.gather(*map(stage.toolstack.create, wanted), return_exceptions=True)
    assert sum(isinstance(each, Exists) for each in made) == 2


async def test_memory_beyond_the_host_is_an_error(stage: Stage) -> None:
    physical = await stage.toolstack.physical_info()
    wanted = stage.spec(memory_bytes=physical.total_memory_bytes + (1 << 30))
    with pytest.raises(Exhausted):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None
    info = await stage.create()
    after = await stage.toolstack.physical_info()
    assert physical.free_memory_bytes - after.free_memory_bytes >= info.memory_bytes
    assert physical.cpus >= 1 and physical.version


_ROUNDING = 1 << 20
"""Pages of Xen that come and go without a domain."""


async def test_a_domain_takes_no_more_than_was_said(stage: Stage) -> None:
    """Memory of a domain, and the hypervisor's memory for the domain: the ledger of zones relies on both."""
    before = await stage.toolstack.memory()
    for vcpus in (1, 3):
        info = await stage.create(vcpus=vcpus)
        promised = info.memory_bytes + stage.toolstack.overhead_bytes(info.memory_bytes, vcpus, stage.mode)
        made = await stage.toolstack.memory()
        assert info.memory_bytes <= made.domains[info.uuid] <= promised + _ROUNDING
        assert info.memory_bytes <= before.free - made.free <= promised
        await stage.toolstack.unpause(info.id)
        await stage.connect(info.id)
        running = await stage.toolstack.memory()
        assert before.free - running.free <= promised
        await stage.toolstack.destroy(info.id)

        async def scrubbed() -> bool:
            return (await stage.toolstack.memory()).free + _ROUNDING >= before.free

        await until(scrubbed, PATIENCE)
    assert info.uuid not in (await stage.toolstack.memory()).domains


async def test_another_kernel_is_checked_or_refused(stage: Stage, tmp_path: Path) -> None:
    """tests/xen/inside/test_zone_kernel.py boots a kernel in the mode."""
    (tmp_path / "image").write_bytes(b"no kernel")
    own = (await stage.toolstack.physical_info()).kernels
    wanted = stage.spec(kernel=DomainKernel("example", tmp_path / "image"))
    with pytest.raises(Invalid if own else Refused, match="no" if own else "share the host's kernel"):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None


async def test_capabilities_list_the_possible_modes(stage: Stage) -> None:
    can = stage.toolstack.capabilities()
    assert can.hvm or not can.hap
    assert can.numa_nodes >= 1
    assert can.hypervisor_version in (await stage.toolstack.physical_info()).version
    for mode, possible in ((Mode.PV, can.pv), (Mode.PVH, can.hvm)):
        wanted = stage.spec(mode=mode)
        if possible:
            await stage.toolstack.destroy(await stage.toolstack.create(wanted))
        else:
            with pytest.raises(Refused, match=f"cannot run {mode.value} guests"):
                await stage.toolstack.create(wanted)
        assert await stage.info(wanted.uuid) is None


async def test_a_clock_of_its_own_or_the_hosts(stage: Stage) -> None:
    """``own_clocks`` depends on the agent: protectd never asks an agent that cannot set the clock."""
    own = stage.toolstack.capabilities().own_clocks
    assert own == (stage.toolstack.name == "libxl")
    agent = await stage.boot()
    hour = 3_600_000_000_000
    change = pb.SyncClock(add_ns=hour, step=True)
    before = time.time_ns()
    if own:
        reading = (await agent.call(sync_clock=change)).clock
        assert reading.realtime_ns - time.time_ns() > hour // 2
    else:
        with pytest.raises(Refused, match="it is the host's"):
            await agent.call(sync_clock=change)
    assert time.time_ns() - before < hour // 2, "the host's clock was set"


async def test_an_unknown_label_is_refused(stage: Stage) -> None:
    """The domain would have no enforcement: libxl alone makes the domain, with a warning in its log."""
    wanted = stage.spec(seclabel="nobody_u:nobody_r:nothing_t")
    flask = stage.toolstack.capabilities().flask
    assert not await stage.toolstack.has_seclabel(wanted.seclabel)
    with pytest.raises(Invalid if flask else Refused, match="policy lacks" if flask else "has no FLASK"):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None


async def test_domains_made_many_at_once_are_distinct_and_reachable(stage: Stage) -> None:
    agents = await asyncio.gather(*(stage.boot(interfaces=1) for _ in range(stage.many)))
    assert len({agent.domain for agent in agents}) == stage.many
    facts = await asyncio.gather(*(agent.call(get_facts=pb.GetFacts()) for agent in agents))
    assert [reply.facts.pid1 for reply in facts] == ["init"] * stage.many
    names = [await stage.toolstack.host_interface(agent.domain, 0) for agent in agents]
    assert len(set(names)) == stage.many and all(len(name) <= 15 for name in names)
    await asyncio.gather(*(stage.toolstack.destroy(agent.domain) for agent in agents))


async def test_a_cancelled_create_can_be_found_and_destroyed(stage: Stage) -> None:
    cancelled = 0
    for delay in (0.0, 0.001, 0.003, 0.01):
        wanted = stage.spec(interfaces=1)
        creating = asyncio.create_task(stage.toolstack.create(wanted))
        await asyncio.sleep(0)  # the call begins
        await asyncio.sleep(delay)
        cancelled += creating.cancel()
        await asyncio.wait([creating])
        # The step has ended: no call has to wait for the guest.
        info = await stage.info(wanted.uuid)
        assert info is not None and info.state is DomainState.PAUSED
        await stage.toolstack.destroy(info.id)
        assert await stage.info(wanted.uuid) is None
    assert cancelled, "every create was too quick for this test"


async def test_a_cancelled_destroy_goes_on(stage: Stage) -> None:
    info = await stage.create()
    destroying = asyncio.create_task(stage.toolstack.destroy(info.id))
    for _ in range(3):
        await asyncio.sleep(0)
        destroying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await destroying
    assert await stage.info(info.uuid) is None
    await stage.toolstack.destroy(info.id)
    assert await stage.info(info.uuid) is None


async def test_a_cancelled_attach_has_ended(stage: Stage, images: tuple[Path, Path]) -> None:
    info = await stage.create()
    attaching = asyncio.create_task(stage.toolstack.attach_disk(info.id, DiskSpec("xvda", images[0])))
    await asyncio.sleep(0)
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    assert await stage.toolstack.disks(info.id) == ["xvda"]


async def test_close_waits_for_an_abandoned_create(stage: Stage) -> None:
    wanted = stage.spec()
    creating = asyncio.create_task(stage.toolstack.create(wanted))
    await asyncio.sleep(0)
    creating.cancel()
    await stage.restart()
    await asyncio.wait([creating])
    assert creating.cancelled()
    info = await stage.info(wanted.uuid)
    assert info is not None and info.state is DomainState.PAUSED


async def test_a_wait_for_the_channel_is_given_up_at_once(stage: Stage) -> None:
    info = await stage.create()  # paused: the agent never answers
    connecting = asyncio.create_task(stage.connect(info.id))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


@pytest.mark.parametrize(
    "verb", ["pause", "unpause", "attach_disk", "disks", "host_interface", "open_channel"]
)
async def test_nobody_can_be_worked_with(stage: Stage, verb: str, images: tuple[Path, Path]) -> None:
    arguments = {"attach_disk": (DiskSpec("xvda", images[0]),), "host_interface": (0,)}
    with pytest.raises(DomainGone):
        await getattr(stage.toolstack, verb)(NOBODY, *arguments.get(verb, ()))


# -- the end of a domain


async def test_the_end_by_its_own_will(stage: Stage) -> None:
    deaths = stage.toolstack.deaths()
    agent = await stage.boot()
    info = next(i for i in await stage.toolstack.list() if i.id == agent.domain)
    await agent.call(power_off=pb.PowerOff())
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.POWEROFF)
    ended = await stage.info(info.uuid)
    assert ended is not None and ended.id == info.id
    assert (ended.state, ended.shutdown_reason) == (DomainState.SHUTDOWN, ShutdownReason.POWEROFF)
    with pytest.raises(DomainGone):
        await stage.toolstack.open_channel(info.id)
    await stage.toolstack.destroy(info.id)
    assert await stage.info(info.uuid) is None
    await _silent(deaths)


async def test_the_end_by_a_crash(stage: Stage) -> None:
    agent = await stage.boot()
    deaths = stage.toolstack.deaths()
    info = next(i for i in await stage.toolstack.list() if i.id == agent.domain)
    await stage.crash(info.id)
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.CRASH)
    assert (await present(stage, info)).shutdown_reason is ShutdownReason.CRASH
    death = judge(ShutdownReason.CRASH, await stage.toolstack.console(info.id, CONSOLE_BYTES))
    # A guest of the fake has no kernel that could panic.
    wanted = {"fake": DeathKind.AGENT_CRASHED, "libxl": DeathKind.KERNEL_PANIC}
    assert death.kind is wanted[stage.toolstack.name], death


async def test_the_end_by_others(stage: Stage) -> None:
    agent = await stage.boot()
    deaths = stage.toolstack.deaths()
    info = next(i for i in await stage.toolstack.list() if i.id == agent.domain)
    await stage.destroy_behind(info.id)
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.DESTROYED)
    await stage.toolstack.destroy(info.id)
    await _silent(deaths)


async def test_the_end_by_destroy_is_told_to_all_who_listen(stage: Stage) -> None:
    info = await stage.create()
    listeners = [stage.toolstack.deaths() for _ in range(2)]
    await stage.toolstack.destroy(info.id)
    for deaths in listeners:
        assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.DESTROYED)
        await _silent(deaths)


async def _silent(deaths: object) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(deaths), 0.2)  # type: ignore[call-overload]


# -- disks


async def test_a_disk_is_seen_in_the_guest_and_comes_and_goes(
    stage: Stage, images: tuple[Path, Path]
) -> None:
    agent = await stage.boot()
    toolstack, domain = stage.toolstack, agent.domain
    for number, image in enumerate(images):
        await toolstack.attach_disk(domain, DiskSpec("xvda", image))
        assert await toolstack.disks(domain) == ["xvda"]
        with pytest.raises(Exists):
            await toolstack.attach_disk(domain, DiskSpec("xvda", images[0]))
        assert await agent.run(f"c{number}", "xvda", "cat", "/marker") == (0, image.stem.encode() + b"\n")
        await asyncio.gather(*(toolstack.detach_disk(domain, "xvda") for _ in range(2)))
        await toolstack.detach_disk(domain, "xvda")
        assert await toolstack.disks(domain) == []


async def test_disks_beside_each_other(stage: Stage, images: tuple[Path, Path]) -> None:
    agent = await stage.boot()
    vdevs = ["xvda", "xvdb", "xvdc"]
    await asyncio.gather(
        *(stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, images[1])) for vdev in vdevs)
    )
    assert await stage.toolstack.disks(agent.domain) == vdevs
    outputs = await asyncio.gather(*(agent.run(vdev, vdev, "cat", "/marker") for vdev in vdevs))
    assert outputs == [(0, b"two\n")] * 3


async def test_stacked_disks_show_the_top_file(stage: Stage, images: tuple[Path, Path]) -> None:
    """The guest's kernel stacks the filesystems; the last is on top."""
    agent = await stage.boot()
    for vdev, image in zip(("xvda", "xvdba"), images, strict=True):
        await stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, image))
    assert await agent.run("c1", "xvda xvdba", "cat", "/marker") == (0, b"two\n")
    assert await agent.run("c2", "xvdba xvda", "cat", "/marker") == (0, b"one\n")


async def test_a_guest_with_unreleased_disks_delays_no_call_and_not_its_end(
    stage: Stage, images: tuple[Path, Path]
) -> None:
    """The guest is paused and never agrees, and has more disks than protectd has threads."""
    toolstack = stage.toolstack
    evil, other = await stage.create(), await stage.create()
    vdevs = [f"xvd{letter}" for letter in "abcdefghij"]
    for vdev in vdevs:
        await toolstack.attach_disk(evil.id, DiskSpec(vdev, images[0]))
    detaching = [asyncio.create_task(toolstack.detach_disk(evil.id, vdev)) for vdev in vdevs * 2]
    await asyncio.sleep(0)
    await soon(toolstack.attach_disk(other.id, DiskSpec("xvda", images[1])))
    assert await soon(toolstack.disks(other.id)) == ["xvda"]
    await soon(toolstack.physical_info())
    await soon(toolstack.destroy(other.id))
    # A detaching verb and a declaration of the end do not wait for each other.
    toolstack.abandon(evil.id)
    await soon(asyncio.wait(detaching[:1]))
    await soon(toolstack.destroy(evil.id))
    await soon(asyncio.gather(*detaching))
    assert await stage.info(evil.uuid) is None


async def test_impossible_disks_are_refused(stage: Stage, images: tuple[Path, Path], tmp_path: Path) -> None:
    info = await stage.create()
    odd = tmp_path / "odd"
    odd.write_bytes(bytes(513))
    with pytest.raises(Missing):
        await stage.toolstack.attach_disk(info.id, DiskSpec("xvda", tmp_path / "nothing"))
    with pytest.raises(Invalid):
        await stage.toolstack.attach_disk(info.id, DiskSpec("xvda", odd))
    for vdev in ("../null", "sda", "xvd", ""):
        with pytest.raises(Invalid):
            await stage.toolstack.attach_disk(info.id, DiskSpec(vdev, images[0]))
    assert await stage.toolstack.disks(info.id) == []


# -- interfaces


async def test_a_spliced_interface_is_the_pods_end(stage: Stage, pod_network: PodNetwork) -> None:
    agent = await stage.boot(interfaces=1)
    name = await stage.toolstack.host_interface(agent.domain, 0)
    assert pod_network.ping("10.77.0.5", 1), "the pod's namespace itself answers before the splice"
    guest = await splice(name, pod_network.path, "eth0")
    assert (guest.mtu, guest.addresses) == (MTU, ("10.77.0.5/24", "fd77::5/64"))
    assert {(r.destination, r.gateway) for r in guest.routes} == {
        ("0.0.0.0/0", "10.77.0.1"),
        ("::/0", "fd77::1"),
    }
    assert not pod_network.ping("10.77.0.5", 1, patience=1), "the namespace's own stack answers for the guest"
    await agent.configure(0, guest)
    await until(
        lambda: all(pod_network.ping(address, 1, patience=1) for address in ("10.77.0.5", "fd77::5")),
        PATIENCE,
    )
    assert await splice(name, pod_network.path, "eth0") == guest
    assert pod_network.ping("10.77.0.5") and pod_network.ping("fd77::5")
    stats = (await agent.call(get_stats=pb.GetStats())).stats.zone.interfaces
    assert next(each for each in stats if each.name == "eth0").rx_packets >= 4


async def test_an_interface_is_created_in_the_requested_namespace(
    stage: Stage, pod_network: PodNetwork
) -> None:
    agent = await stage.boot(interfaces=1, netns=pod_network.path)
    name = await stage.toolstack.host_interface(agent.domain, 0)
    await until(lambda: name in pod_network.interfaces(), PATIENCE)
    assert name not in os.listdir("/sys/class/net")
    await agent.configure(0, await splice(name, pod_network.path, "eth0"))
    await until(lambda: pod_network.ping("10.77.0.5", 1, patience=1), PATIENCE)
    await stage.toolstack.destroy(agent.domain)
    await until(lambda: name not in pod_network.interfaces(), PATIENCE)


async def test_an_interface_wanted_nowhere(stage: Stage) -> None:
    wanted = stage.spec(interfaces=1, netns="/run/netns/no-such")
    with pytest.raises(Missing):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None


async def test_interfaces_there_are_and_are_not(stage: Stage) -> None:
    info = await stage.create(interfaces=2)
    names = [await stage.toolstack.host_interface(info.id, index) for index in range(2)]
    assert len(set(names)) == 2
    assert set(names) <= set(os.listdir("/sys/class/net"))
    for index in (2, -1):
        with pytest.raises(Invalid):
            await stage.toolstack.host_interface(info.id, index)
    await stage.toolstack.destroy(info.id)
    await until(lambda: not set(names) & set(os.listdir("/sys/class/net")), PATIENCE)


async def test_a_splice_to_a_missing_interface_is_an_error(stage: Stage, pod_network: PodNetwork) -> None:
    info = await stage.create(interfaces=1)
    name = await stage.toolstack.host_interface(info.id, 0)
    with pytest.raises(Missing):
        await splice(name, "/run/netns/no-such", "eth0")
    with pytest.raises(Missing):
        await splice(name, pod_network.path, "eth7")
    with pytest.raises(Missing):
        await splice("no-such", pod_network.path, "eth0")
    assert name in os.listdir("/sys/class/net")


# -- the channel


async def test_a_new_connection_replaces_the_last_connection(stage: Stage) -> None:
    info = await stage.create()
    await stage.toolstack.unpause(info.id)
    first = await asyncio.wait_for(stage.toolstack.open_channel(info.id), PATIENCE)  # a Link would come again
    second = await stage.connect(info.id)
    assert (await second.call(get_facts=pb.GetFacts())).facts.pid1 == "init"
    while await soon(first.read(1 << 16)):
        pass
    await first.close()


async def test_a_transport_ends_with_its_domain(stage: Stage) -> None:
    info = await stage.create()
    await stage.toolstack.unpause(info.id)
    transport = await asyncio.wait_for(stage.toolstack.open_channel(info.id), PATIENCE)
    reading = asyncio.create_task(transport.read(100))
    await stage.toolstack.destroy(info.id)
    assert await soon(reading) == b""
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            await asyncio.wait_for(transport.write(bytes(65536)), PATIENCE)
    await transport.close()


async def test_closing_wakes_a_reader(stage: Stage) -> None:
    info = await stage.create()
    await stage.toolstack.unpause(info.id)
    transport = await asyncio.wait_for(stage.toolstack.open_channel(info.id), PATIENCE)
    reading = asyncio.create_task(transport.read(100))
    await asyncio.sleep(0.05)
    await transport.close()
    await transport.close()
    assert await soon(reading) == b""


async def test_the_console_is_bounded(stage: Stage) -> None:
    agent = await stage.boot()
    assert len(await stage.toolstack.console(agent.domain, 64)) <= 64


# -- a restart


async def test_after_a_restart_all_is_found_again(stage: Stage, images: tuple[Path, Path]) -> None:
    agent = await stage.boot(interfaces=1)
    paused = await stage.create()
    domain = agent.domain
    name = await stage.toolstack.host_interface(domain, 0)
    await stage.toolstack.attach_disk(domain, DiskSpec("xvda", images[0]))
    await agent.begin("c1", "xvda", "sleep", "1000")
    before = {info.id: (info.uuid, info.name, info.state) for info in await stage.toolstack.list()}
    await stage.restart()
    after = {info.id: (info.uuid, info.name, info.state) for info in await stage.toolstack.list()}
    assert {domain, paused.id} <= set(before) and after == before
    assert await stage.toolstack.host_interface(domain, 0) == name
    assert await stage.toolstack.disks(domain) == ["xvda"]
    again = await stage.connect(domain)
    listed = (await again.call(list_processes=pb.ListProcesses())).processes.processes
    assert [process.state for process in listed] == [pb.PROCESS_STATE_RUNNING]
    with pytest.raises(Exists):
        await stage.toolstack.attach_disk(domain, DiskSpec("xvda", images[1]))
    await again.call(delete_container=pb.DeleteContainer(id="c1"))
    await stage.toolstack.detach_disk(domain, "xvda")
    await stage.toolstack.attach_disk(domain, DiskSpec("xvda", images[1]))
    assert await again.run("c2", "xvda", "cat", "/marker") == (0, b"two\n")
    deaths = stage.toolstack.deaths()
    await stage.toolstack.destroy(paused.id)
    assert await soon(anext(deaths)) == DomainDeath(paused.uuid, ShutdownReason.DESTROYED)


async def test_an_end_nobody_watched_is_reported(stage: Stage) -> None:
    agent = await stage.boot()
    info = next(i for i in await stage.toolstack.list() if i.id == agent.domain)
    deaths = stage.toolstack.deaths()
    await agent.call(power_off=pb.PowerOff())
    await soon(anext(deaths))
    await stage.restart()
    for _ in range(2):
        later = stage.toolstack.deaths()
        assert await soon(anext(later)) == DomainDeath(info.uuid, ShutdownReason.POWEROFF)
        await _silent(later)
