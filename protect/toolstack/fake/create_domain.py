"""Creates domains, finds them again after a restart, and removes them."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Exists, Invalid, Missing, Refused
from protect.model.capacity.modes import refuse_impossible_label, refuse_impossible_mode
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainId, DomainSpec
from protect.toolstack.fake import faultplan, interfaces
from protect.toolstack.fake.domain import Domain, read_pid, write_spec
from protect.toolstack.fake.fake_settings import FakeSettings
from protect.toolstack.fake.faultplan import InjectedFault
from protect.toolstack.fake.home import Home
from protect.toolstack.fake.launcher import Launch, launch
from protect.toolstack.fake.resizing.limits import CgroupLimits
from protect.toolstack.pidfd_process import PidfdProcess

log = logging.getLogger(__name__)

_MONITOR_SECONDS = 5.0


def admit(settings: FakeSettings, spec: DomainSpec, others: Sequence[DomainSpec], free: int) -> None:
    """Refused, Exists, Exhausted: the domain cannot run beside ``others``.  ``free``: bytes of memory."""
    _refuse_impossible(settings, spec)
    if any(spec.name == other.name or spec.uuid == other.uuid for other in others):
        raise Exists("create domain", spec.name, "a domain of that name or uuid exists")
    if (need := spec.memory_bytes + settings.domain_overhead) > free:
        cause = f"wants {need} bytes of memory, {free} of {settings.zone_memory} are free"
        raise Exhausted("create domain", spec.name, cause)


def _refuse_impossible(settings: FakeSettings, spec: DomainSpec) -> None:
    """Refused: the spec has its own kernel, an unsupported mode, or a label without FLASK.

    Invalid: the settings lack the label.
    """
    if spec.kernel:
        cause = f"the fake toolstack's zones share the host's kernel, and cannot boot {spec.kernel.name}"
        raise Refused("create domain", spec.name, cause, "leave out the kernel, or use Xen")
    refuse_impossible_mode("create domain", spec.name, spec.mode, settings.capabilities)
    refuse_impossible_label("create domain", spec.name, spec.seclabel, settings.capabilities)
    if spec.cpupool and spec.cpupool not in settings.cpupools:
        raise Missing("create domain", spec.name, f"there is no pool of CPUs {spec.cpupool}")
    if spec.seclabel and spec.seclabel not in settings.seclabels:
        raise Invalid("create domain", spec.name, f"the hypervisor's policy lacks the label {spec.seclabel}")


async def create_domain(
    home: Home, settings: FakeSettings, spec: DomainSpec, fault: InjectedFault | None
) -> Domain:
    """Create the domain, paused; a failure leaves nothing of it behind."""
    if spec.shared and not await asyncio.to_thread(spec.shared.exists):
        raise Missing("create domain", spec.name, f"there is no mount namespace {spec.shared} to share")
    async with AsyncExitStack() as undo:
        undo.push_async_callback(remove_domain, home, spec)
        directory = home.directory(spec.uuid)
        directory.mkdir(mode=0o700)
        write_spec(directory, spec)
        checkpoint("fake-create.written")
        limits = CgroupLimits(spec.memory_bytes, spec.vcpus, settings.pids_limit)
        groups = await asyncio.to_thread(home.cgroups.create, str(spec.uuid), limits)
        checkpoint("fake-create.grouped")
        await _launch(home, settings, spec, tuple(groups))
        checkpoint("fake-create.launched")
        domain = find_processes(home, spec)
        if domain is None or domain.process is None:
            raise ToolstackError("create domain", spec.name, "its first process ended at once")
        undo.push_async_callback(_kill, domain)
        faultplan.after(fault, "create domain", spec.name)
        if spec.interfaces:
            await interfaces.create_pairs(home.instance, spec, domain.id)
        checkpoint("fake-create.wired")
        undo.pop_all()
        return domain


async def remove_domain(home: Home, spec: DomainSpec) -> None:
    """Kill and remove everything of a domain; may be repeated."""
    await home.cgroups.remove(str(spec.uuid))
    checkpoint("fake-destroy.ungrouped")
    if spec.interfaces:
        await interfaces.remove_pairs(home.instance, spec)
    await home.forget(spec.uuid)


def find_processes(home: Home, spec: DomainSpec) -> Domain | None:
    """Find a domain's processes and hold them; None if the domain never had any."""
    directory = home.directory(spec.uuid)
    found = read_pid(directory)
    if found is None:
        return None
    pid, starttime = found
    process = PidfdProcess.open(pid, starttime)
    return Domain(spec, directory, DomainId(pid), process, process and _monitor_of(process, directory))


def _monitor_of(process: PidfdProcess, directory: Path) -> PidfdProcess | None:
    """The monitor: the parent process, if the parent is fakedom and not a reaper after a kill."""
    stat = process.stat()
    monitor = PidfdProcess.open(stat.parent) if stat else None
    if stat is None or monitor is None:
        return None
    with suppress(FileNotFoundError, ProcessLookupError):
        if os.fsencode(directory) in Path(f"/proc/{stat.parent}/cmdline").read_bytes().split(b"\0"):
            return monitor
    monitor.close()
    return None


async def _kill(domain: Domain) -> None:
    """Kill a domain's process, wait for its end, and release our descriptors."""
    if domain.process is not None:
        domain.process.kill()
        await wait_for_end(domain)
    domain.release()


async def wait_for_end(domain: Domain) -> None:
    """Wait until the domain's first process has ended and the monitor has written the reason."""
    if domain.process is not None:
        await domain.process.wait()
    if domain.monitor is not None:
        try:
            async with asyncio.timeout(_MONITOR_SECONDS):
                await domain.monitor.wait()
        except TimeoutError:
            log.warning("the monitor of %s does not end with it", domain.spec.name)


async def wait_for_launcher(home: Home, spec: DomainSpec, timeout: float) -> bool:
    """Wait until no launcher works on the domain (a launcher outlives a killed daemon).  False: timeout."""
    try:
        async with asyncio.timeout(timeout):
            while (lock := await asyncio.to_thread(_lock, home, spec)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # a blocking wait for the lock would hold a thread
    except TimeoutError:
        return False
    os.close(lock)
    return True


def _lock(home: Home, spec: DomainSpec) -> int | None:
    """Lock a domain's directory; None while another process holds the lock."""
    lock = os.open(home.directory(spec.uuid) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


async def _launch(home: Home, settings: FakeSettings, spec: DomainSpec, groups: tuple[Path, ...]) -> None:
    lock = await asyncio.to_thread(_lock, home, spec)
    assert lock is not None, "a directory that was just made is locked by another process"
    try:
        request = Launch(
            fakedom=home.fakedom,
            root=home.root,
            directory=home.directory(spec.uuid),
            memory=spec.memory_bytes,
            cgroups=groups,
            environment={**spec.environment, "XENPOD_CPUS": "group"},
            shared=spec.shared,
            lock=lock,
        )
        await launch(request, settings.launch_seconds)
    finally:
        os.close(lock)
