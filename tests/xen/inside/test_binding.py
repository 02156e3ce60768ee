"""xenbind against a real hypervisor."""

from __future__ import annotations

import asyncio
import queue
import select
from collections.abc import Callable

import pytest

from protect.model.toolstack import Mode
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.capacity.rings import CHANNEL_ORDER
from protect.toolstack.libxl.config import NO_SCRIPT, domain_config
from tests.xen.inside.conftest import MakeSpec, gone
from xenbind import disk, domain, errors, nic, physinfo, vchan
from xenbind.context import Context
from xenbind.domain import Shutdown
from xenbind.domain_ends import DeathWatcher, DomainEnd
from xenbind.xenstore import Xenstore

Create = Callable[..., int]
Ends = tuple[DeathWatcher, "queue.Queue[DomainEnd]"]
NO_DOMAIN = 30000
PATIENCE = 240.0


def test_physical_info_describes_the_host(context: Context) -> None:
    info = physinfo.physinfo(context)
    assert info.version.startswith("Xen 4.")
    assert 0 < info.free_bytes < info.total_bytes
    assert info.pv and info.hvm and info.version.startswith(f"Xen {info.release}")
    assert not info.iommu, "QEMU has none unless it is asked for"
    assert info.cpus >= 1


@pytest.mark.parametrize(
    ("mode", "test", "reason"),
    [
        (Mode.PV, "poweroff", Shutdown.POWEROFF),
        (Mode.PVH, "reboot", Shutdown.REBOOT),
        (Mode.PV, "crash", Shutdown.CRASH),
    ],
)
def test_a_domain_ends_by_itself(
    context: Context, create: Create, ends: Ends, mode: Mode, test: str, reason: Shutdown
) -> None:
    watcher, told = ends
    domid = create(test, mode)
    assert domain.info(context, domid).paused
    watcher.watch(domid, 7)
    domain.unpause(context, domid)
    assert told.get(timeout=PATIENCE) == DomainEnd(domid, 7, reason)
    info = domain.info(context, domid)
    assert (info.shutdown, info.shutdown_reason) == (True, reason)
    domain.destroy(context, domid)
    assert told.get(timeout=PATIENCE) == DomainEnd(domid, 7, None)
    assert gone(context, domid)


def test_an_end_before_the_watch_is_told(context: Context, create: Create, ends: Ends) -> None:
    watcher, told = ends
    first, second = create("mute"), create("poweroff")
    watcher.watch(first, 1)
    domain.unpause(context, second)
    while not domain.info(context, second).shutdown:
        pass
    watcher.watch(second, 2)
    assert told.get(timeout=PATIENCE) == DomainEnd(second, 2, Shutdown.POWEROFF)


def test_watching_a_missing_domain(ends: Ends) -> None:
    watcher, told = ends
    watcher.watch(NO_DOMAIN, 3)
    assert told.get(timeout=PATIENCE) == DomainEnd(NO_DOMAIN, 3, None)


def test_domain_is_listed_as_created(context: Context, boot: Boot, spec: MakeSpec) -> None:
    wanted = spec("mute")
    domid = domain.create_domain(context, domain_config(wanted, boot, "quiet"))
    found = next(info for info in domain.domains(context) if info.uuid == wanted.uuid)
    assert (found.domid, found.name, found.vcpus) == (domid, wanted.name, 1)
    assert found.memory_kib * 1024 == wanted.memory_bytes


def test_errors_have_names_and_causes(context: Context) -> None:
    with pytest.raises(errors.DomainNotFound, match=r"domain 30000: ERROR_DOMAIN_NOTFOUND \(-21\)"):
        domain.info(context, NO_DOMAIN)
    with pytest.raises(errors.DomainNotFound, match="Non-existant domain"):
        domain.destroy(context, NO_DOMAIN)
    with pytest.raises(errors.XenError):
        domain.create_domain(context, {"c_info": "nonsense"})


@pytest.mark.parametrize(
    "wrong",
    [{"kernel": "/nonexistent"}, {"ramdisk": "/nonexistent"}, {"max_memkb": 4096, "target_memkb": 4096}],
)
def test_a_failed_create_leaves_nothing(
    context: Context, boot: Boot, spec: MakeSpec, wrong: dict[str, object]
) -> None:
    before = domain.domains(context)
    config = domain_config(spec("mute"), boot, "quiet")
    build = config["b_info"]
    assert isinstance(build, dict)
    with pytest.raises(errors.XenError, match="libxl"):
        domain.create_domain(context, {**config, "b_info": {**build, **wrong}})
    assert [info.domid for info in domain.domains(context)] == [info.domid for info in before]


def test_a_name_is_taken_once(context: Context, boot: Boot, spec: MakeSpec) -> None:
    config = domain_config(spec("mute"), boot, "quiet")
    domid = domain.create_domain(context, config)
    with pytest.raises(errors.XenError, match="already exists"):
        domain.create_domain(context, config)
    assert domain.info(context, domid).paused


def test_interfaces_have_backends(context: Context, create: Create) -> None:
    domid = create("mute", interfaces=2)
    with Xenstore() as store:
        for index, interface in enumerate(nic.nics(context, domid)):
            assert interface.devid == index
            assert store.read(f"{interface.backend}/frontend-id") == str(domid).encode()
    assert len(nic.nics(context, domid)) == 2


def test_disks_are_listed_until_detached(context: Context, create: Create, block_device: str) -> None:
    domid = create("mute")
    wanted = disk.BlockDevice("xvda", block_device, True, NO_SCRIPT)
    backend = disk.attach_disk(context, domid, wanted)
    assert disk.backend(context, domid, "xvda") == backend
    with Xenstore() as store:
        assert store.read(f"{backend}/mode") == b"r"
    with pytest.raises(errors.DeviceExists):
        disk.attach_disk(context, domid, wanted)
    assert [(found.vdev, found.device, found.readonly) for found in disk.disks(context, domid)] == [
        ("xvda", block_device, True)
    ]
    disk.detach_disk(context, domid, "xvda", force=True)
    assert disk.disks(context, domid) == []
    with pytest.raises(errors.DeviceNotFound):
        disk.detach_disk(context, domid, "xvda")


def test_xenstore_keeps_values_until_removed() -> None:
    with Xenstore() as store:
        store.write("/tool/xenpod-test/a", b"1\0\xff")
        assert store.read("/tool/xenpod-test/a") == b"1\0\xff"
        assert store.list("/tool/xenpod-test") == ["a"]
        store.remove("/tool/xenpod-test")
        store.remove("/tool/xenpod-test")
        assert store.read("/tool/xenpod-test/a") is None
        assert store.list("/tool/xenpod-test") == []
        with pytest.raises(OSError, match="write xenstore"):
            store.write("/tool/" + "x" * 4000, b"")


def test_xenstore_does_not_make_removed_nodes_again() -> None:
    with Xenstore() as store:
        store.write("/tool/xenpod-test", b"")
        store.write_below("/tool/xenpod-test", "a", b"1")
        store.write_below("/tool/xenpod-test", "a", b"2")
        assert store.read("/tool/xenpod-test/a") == b"2"
        store.remove("/tool/xenpod-test")
        with pytest.raises(FileNotFoundError):
            store.write_below("/tool/xenpod-test", "a", b"3")
        assert store.read("/tool/xenpod-test") is None


def test_xenstore_watch_reports_changes_until_unwatched() -> None:
    with Xenstore() as store:
        store.watch("/tool/xenpod-test", "mine")
        assert _next(store) == ("/tool/xenpod-test", "mine")
        assert store.next_watch() is None
        store.write("/tool/xenpod-test/b", b"")
        assert _next(store) == ("/tool/xenpod-test/b", "mine")
        store.unwatch("/tool/xenpod-test", "mine")
        store.remove("/tool/xenpod-test")
        assert store.next_watch() is None


def _next(store: Xenstore) -> tuple[str, str] | None:
    assert select.select([store.fd], [], [], 10)[0]
    return store.next_watch()


def test_vchan_without_a_server() -> None:
    with pytest.raises(errors.VchanError, match="No such file"):
        vchan.VchanClient(0, "/nonexistent", CHANNEL_ORDER)


def _served(domid: int, epoch: int) -> vchan.VchanClient:
    """Connect once the guest serves ``epoch``."""
    with Xenstore() as store:
        store.watch(f"/local/domain/{domid}/data/agent-epoch", "epoch")
        while store.read(f"/local/domain/{domid}/data/agent-epoch") != str(epoch).encode():
            assert select.select([store.fd], [], [], PATIENCE)[0], "the guest serves no vchan"
            store.next_watch()
    return vchan.VchanClient(domid, f"/local/domain/{domid}/data/agent/{epoch}", CHANNEL_ORDER)


def _receive(client: vchan.VchanClient, count: int) -> bytes:
    received = bytearray()
    buffer = bytearray(65536)
    while len(received) < count:
        got = client.read_into(buffer)
        assert got is not None
        received += buffer[:got]
        if not got:
            assert select.select([client.fd], [], [], PATIENCE)[0], "nothing comes"
            client.consume()
    return bytes(received)


@pytest.mark.parametrize("mode", Mode)
def test_vchan_carries_bytes(context: Context, create: Create, mode: Mode) -> None:
    domid = create("echo", mode)
    domain.unpause(context, domid)
    client = _served(domid, 1)
    assert client.read_into(bytearray(10)) == 0
    payload = bytes(range(256)) * 100
    assert client.write(payload) == len(payload)
    assert _receive(client, len(payload)) == payload
    client.close()
    second = _served(domid, 2)  # the guest saw the first connection go
    assert second.write(b"again") == 5
    assert _receive(second, 5) == b"again"
    second.close()


def test_vchan_never_blocks_and_keeps_a_zombie(context: Context, create: Create) -> None:
    domid = create("stuck")
    domain.unpause(context, domid)
    client = _served(domid, 1)
    sent = 0
    while count := client.write(bytes(4096)):
        sent += count
    assert sent == 65536  # the ring is full, without a reader
    domain.destroy(context, domid)
    assert domain.info(context, domid).dying
    assert client.read_into(bytearray(10)) == 0, "a dead guest does not close its ring"
    client.close()
    while not gone(context, domid):
        pass


async def test_children_keep_their_exit_codes(context: Context, boot: Boot, spec: MakeSpec) -> None:
    """libxl runs scripts and reaps them; our children must stay ours."""
    stop = asyncio.Event()

    async def children() -> list[tuple[int, int | None]]:
        codes: list[tuple[int, int | None]] = []
        while not stop.is_set():
            wanted = len(codes) % 100 + 1
            child = await asyncio.create_subprocess_exec("/bin/sh", "-c", f"exit {wanted}")
            codes.append((wanted, await child.wait()))
        return codes

    def domains() -> None:
        with Context() as own:
            for _ in range(2):
                domain.destroy(
                    own, domain.create_domain(own, domain_config(spec("mute", interfaces=2), boot, ""))
                )

    running = [asyncio.create_task(children()) for _ in range(2)]
    await asyncio.to_thread(domains)
    stop.set()
    codes = [code for found in await asyncio.gather(*running) for code in found]
    assert len(codes) > 20
    assert [code for code in codes if code[0] != code[1]] == []
