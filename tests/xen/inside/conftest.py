"""Fixtures for tests in dom0: guests that boot tests/xen/images/guest/peer.c instead of the agent."""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from protect.host.loops import take_loop
from protect.model.toolstack import DomainId, DomainSpec, Mode
from protect.model.zone import domain_name
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.config import domain_config
from protect.toolstack.libxl.kernel import unpacked_kernel
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.waiting import until
from tests.xen import machine
from xenbind import domain, errors
from xenbind.context import Context
from xenbind.domain_ends import DeathWatcher, DomainEnd

MIB = 1 << 20

MakeSpec = Callable[..., DomainSpec]


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> LibxlSettings:
    """The test guest's kernel and initramfs, on tmpfs: libxl reads both at each create."""
    folder = tmp_path_factory.mktemp("guest")
    initramfs = Path(shutil.copy(machine.SHARE / "guest.cpio", folder / "guest.cpio"))
    return LibxlSettings(kernel=machine.small_kernel(), initramfs=initramfs)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the unpacked kernel, for all tests."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def spec() -> MakeSpec:
    """Makes a domain with ``test`` (see peer.c)."""

    def make(test: str, mode: Mode = Mode.PV, interfaces: int = 0, memory: int = 96 * MIB) -> DomainSpec:
        uuid = uuid4()
        return DomainSpec(uuid, domain_name("test", uuid), memory, 1, mode, interfaces, {"TEST": test})

    return make


@pytest.fixture
def boot(guest: LibxlSettings, kernels: Path) -> Boot:
    assert guest.kernel and guest.initramfs
    return Boot(unpacked_kernel(guest.kernel, kernels / "kernels"), guest.initramfs, 0)


@pytest.fixture
def context() -> Iterator[Context]:
    """A context; leftover domains of its test are destroyed."""
    with Context() as context:
        before = {info.domid for info in domain.domains(context)}
        yield context
        for info in domain.domains(context):
            if info.domid not in before and not info.dying:
                domain.destroy(context, info.domid)


@pytest.fixture
def create(context: Context, boot: Boot, spec: MakeSpec) -> Callable[..., int]:
    """Makes a domain by the binding alone, paused."""

    def make(test: str, mode: Mode = Mode.PV, interfaces: int = 0) -> int:
        return domain.create_domain(context, domain_config(spec(test, mode, interfaces), boot, "quiet"))

    return make


@pytest.fixture
def ends() -> Iterator[tuple[DeathWatcher, queue.Queue[DomainEnd]]]:
    """A watcher and its events."""
    told: queue.Queue[DomainEnd] = queue.Queue()
    broken: list[Exception] = []
    watcher = DeathWatcher(told.put, broken.append)
    yield watcher, told
    watcher.close()
    assert not broken


@pytest.fixture
async def toolstack(guest: LibxlSettings, kernels: Path) -> AsyncIterator[LibxlToolstack]:
    """A started toolstack; leftover domains of its test are destroyed."""
    toolstack = LibxlToolstack(kernels, Path("/nonexistent"), guest)
    await toolstack.start()
    before = {info.id for info in await toolstack.list()}
    yield toolstack
    for info in await toolstack.list():
        if info.id not in before:
            await toolstack.destroy(info.id)
    await toolstack.close()


async def until_console(toolstack: LibxlToolstack, domid: int, text: bytes, seconds: float = 60.0) -> bytes:
    """The console once ``text`` is in it."""
    seen = b""

    async def said() -> bool:
        nonlocal seen
        seen = await toolstack.console(DomainId(domid), 65536)
        return text in seen

    await until(said, seconds)
    return seen


def gone(context: Context, domid: int) -> bool:
    try:
        domain.info(context, domid)
    except errors.DomainNotFound:
        return True
    return False


def grants(domain: int) -> int:
    """Pages of the domain in use by others, by Xen's key g."""
    subprocess.run(["xl", "dmesg", "--clear"], capture_output=True, check=True)
    subprocess.run(["xl", "debug-keys", "g"], check=True)
    lines = subprocess.run(["xl", "dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
    count, inside = 0, False
    for line in lines:
        if "grant-table for remote" in line or "no active grant table" in line:
            inside = f"d{domain} " in line or line.rstrip().endswith(f"d{domain}")
        elif inside and line.strip().removeprefix("(XEN)").strip().startswith("["):
            count += 1
    assert count, lines[:20]
    return count


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "disk.img"
    file.write_bytes(b"hello disk\n".ljust(4096, b"\0"))
    loop = take_loop(file)
    yield str(loop.path)
    loop.close()
