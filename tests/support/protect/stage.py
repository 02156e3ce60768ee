"""A toolstack on stage: recreated as after a restart, with domains, agents and remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from uuid import UUID, uuid4

from daemonkit.config import Seconds
from protect.channel.link import Link
from protect.host.disk_rates.groups import DiskGroups
from protect.host.disk_rates.throttle import can_throttle
from protect.model.domain.shares import CpuShares
from protect.model.process import AgentHello, ProcessExited
from protect.model.toolstack import DomainId, DomainInfo, DomainSpec, Mode, Toolstack
from protect.model.zone import GuestNetwork, domain_name
from protect.toolstack.fake import FakeSettings, FakeToolstack, FaultPlan
from protect.toolstack.fake.home import Home
from tests.support.images import busybox
from tests.support.protect import leftovers
from tests.support.protect.agent_crash import crash_agent
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

MIB = 1 << 20
GUEST = Path(os.environ.get("XENPOD_GUEST_DIR") or Path(__file__).parents[3] / "zone/build")
PATIENCE = 300.0
"""Seconds for anything to happen; software emulation is slow."""


class Collector:
    """A Sink that keeps everything."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = asyncio.Event()

    async def write(self, data: bytes) -> int:
        self.data += data
        return len(self.data)

    async def finish(self) -> None:
        self.ended.set()


class Agent:
    """A domain's agent over a real link."""

    def __init__(self, toolstack: Toolstack, domain: DomainId) -> None:
        self.domain = domain
        self.violations: list[str] = []
        self._exits: dict[str, asyncio.Future[int]] = {}
        self.link = Link("contract", lambda: toolstack.open_channel(domain), self)

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """Ask for nothing from an earlier connection."""

    def process_exited(self, exited: ProcessExited) -> None:
        self._exit(exited.process.container_id).set_result(exited.exit_code)

    def disconnected(self) -> None:
        """The link connects again by itself."""

    def violation(self, cause: str) -> None:
        self.violations.append(cause)

    def _exit(self, container: str) -> asyncio.Future[int]:
        return self._exits.setdefault(container, asyncio.get_running_loop().create_future())

    async def call(self, **op: object) -> pb.Reply:
        return await self.link.call(pb.Request(**op), PATIENCE)  # type: ignore[arg-type]

    async def run(
        self,
        name: str,
        disk: str,
        *args: str,
        mounts: Sequence[Mapping[str, object]] = (),
        devices: bool = False,
    ) -> tuple[int, bytes]:
        """Run a container to its end, and delete the container: exit code and output.

        ``disk``: the root's disk, or the disks of a stack with blanks between them, the lowest first.
        """
        stdout = await self.begin(name, disk, *args, mounts=mounts, devices=devices)
        async with asyncio.timeout(PATIENCE):
            code = await self._exit(name)
            await stdout.ended.wait()
        await self.call(delete_container=pb.DeleteContainer(id=name))
        return code, stdout.data

    async def begin(
        self,
        name: str,
        disk: str,
        *args: str,
        mounts: Sequence[Mapping[str, object]] = (),
        devices: bool = False,
    ) -> Collector:
        """A started container, and the sink of its output."""
        config = busybox.config(name, args, mounts=mounts, devices=devices)
        stack = [pb.Filesystem(disk=name, type="squashfs") for name in disk.split()]
        create = pb.CreateContainer(id=name, config_json=config, rootfs=stack)
        created = (await self.call(create_container=create)).created
        stdout, stderr = Collector(), Collector()
        self.link.output(created.stdout_stream, stdout)
        self.link.output(created.stderr_stream, stderr)
        await self.call(start_container=pb.StartContainer(id=name))
        return stdout

    async def configure(self, index: int, guest: GuestNetwork) -> None:
        routes = [pb.Route(destination=route.destination, gateway=route.gateway) for route in guest.routes]
        await self.call(
            configure_network=pb.ConfigureNetwork(
                index=index,
                name="eth0",
                mac=guest.mac,
                mtu=guest.mtu,
                addresses=guest.addresses,
                routes=routes,
            )
        )


class Stage(Protocol):
    """Knowledge of the suite about a toolstack, beyond the port."""

    toolstack: Toolstack
    guest_dir: Path
    folder: Path
    cpupool: str
    """An existing pool of CPUs."""
    mode: Mode
    many: int
    """Maximum number of domains for this host."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def restart(self) -> None: ...

    async def crash(self, domain: DomainId) -> None: ...

    async def destroy_behind(self, domain: DomainId) -> None:
        """End the domain behind the toolstack's back."""
        ...

    async def shares(self, info: DomainInfo) -> CpuShares:
        """The host's memory for the domain, by the host's own count."""
        ...

    def disk_group(self, info: DomainInfo) -> Path:
        """The control group with the rates of the domain's disks."""
        ...

    async def pci_functions(self, domain: DomainId) -> list[str]:
        """The addresses of the domain's current PCI functions, by the host's own count."""
        ...

    def spec(self, **more: object) -> DomainSpec: ...

    async def create(self, **more: object) -> DomainInfo: ...

    async def boot(self, **more: object) -> Agent: ...

    async def connect(self, domain: DomainId) -> Agent: ...

    async def info(self, uuid: UUID) -> DomainInfo | None: ...


class _Common:
    """The common part of both stages."""

    memory = 96 * MIB
    many = 4
    mode = Mode(os.environ.get("XENPOD_TEST_MODE", "pv"))

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guest_dir = GUEST
        self.toolstack: Toolstack
        self._agents: list[Agent] = []
        self._mine: dict[UUID, DomainSpec] = {}
        self._interfaces: set[str] = set()
        self._before = frozenset(self._loops())

    def _make(self) -> Toolstack:
        raise NotImplementedError

    async def open(self) -> None:
        self.toolstack = self._make()
        await self.toolstack.start()

    async def close(self) -> None:
        """Destroy the test's remains, and check that nothing of them is left."""
        await self._hang_up()
        mine = [info for info in await self.toolstack.list() if info.uuid in self._mine]
        await asyncio.gather(*(self.toolstack.destroy(info.id) for info in mine))
        assert not {info.uuid for info in await self.toolstack.list()} & set(self._mine)
        await self.toolstack.close()
        await until(lambda: not self.leftovers(), PATIENCE, self.leftovers)

    async def restart(self) -> None:
        """Another toolstack object on the same host, as after a restart of the daemon."""
        await self._hang_up()
        await self.toolstack.close()
        await self.open()

    async def _hang_up(self) -> None:
        for agent in self._agents:
            await agent.link.close()
            assert agent.violations == []
        self._agents.clear()

    def leftovers(self) -> list[str]:
        """New loop devices on the session's files since the test began, and interfaces."""
        interfaces = self._interfaces & set(os.listdir("/sys/class/net"))
        return sorted(self._loops() - self._before) + sorted(interfaces)

    def _loops(self) -> set[str]:
        return set(leftovers.loops(self.folder.parent))

    def spec(self, **more: object) -> DomainSpec:
        uuid = uuid4()
        values: dict[str, object] = {
            "environment": {"XENPOD_ZONE": "contract"},
            "name": domain_name("contract", uuid),
            "memory_bytes": self.memory,
            "mode": self.mode,
        }
        spec = DomainSpec(uuid=uuid, **(values | more))  # type: ignore[arg-type]
        self._mine[uuid] = spec
        return spec

    async def create(self, **more: object) -> DomainInfo:
        spec = self.spec(**more)
        domain = await self.toolstack.create(spec)
        for index in range(spec.interfaces):
            self._interfaces.add(await self.toolstack.host_interface(domain, index))
        found = await self.info(spec.uuid)
        assert found is not None and found.id == domain
        return found

    async def boot(self, **more: object) -> Agent:
        """A running domain whose agent has sent HELLO."""
        info = await self.create(**more)
        await self.toolstack.unpause(info.id)
        return await self.connect(info.id)

    async def connect(self, domain: DomainId) -> Agent:
        agent = Agent(self.toolstack, domain)
        self._agents.append(agent)
        await agent.link.open(PATIENCE)
        return agent

    async def info(self, uuid: UUID) -> DomainInfo | None:
        found = await self.toolstack.find(uuid)
        listed = [info for info in await self.toolstack.list() if info.uuid == uuid]
        # The used time may have grown in between.
        assert [info.id for info in listed] == ([found.id] if found else [])
        return found


class FakeStage(_Common):
    """A stage with the fake toolstack."""

    many = 20
    cpupool = "others"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run_dir = folder / "run"
        self.settings = FakeSettings(cpupools=(self.cpupool,))
        self.faults = FaultPlan()

    def _make(self) -> FakeToolstack:
        return FakeToolstack(self.run_dir, self.guest_dir, self.settings, self.faults)

    async def crash(self, domain: DomainId) -> None:
        """Crash the first process of the domain."""
        uuid = next(info.uuid for info in await self.toolstack.list() if info.id == domain)
        await asyncio.to_thread(crash_agent, domain, self.run_dir / "domains" / str(uuid))

    async def destroy_behind(self, domain: DomainId) -> None:
        os.kill(domain, signal.SIGKILL)

    async def shares(self, info: DomainInfo) -> CpuShares:
        groups = Home(self.run_dir, self.guest_dir).cgroups.groups(str(info.uuid))
        (group,) = (group for group in groups if _has_quota(group))
        if (group / "cpu.max").exists():
            quota, period = map(int, (group / "cpu.max").read_text().split())
            weight = int((group / "cpu.weight").read_text()) * 256 // 100
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            weight = int((group / "cpu.shares").read_text()) // 4
        return CpuShares(weight, quota * 100 // period)

    def disk_group(self, info: DomainInfo) -> Path:
        groups = Home(self.run_dir, self.guest_dir).cgroups.groups(str(info.uuid))
        (group,) = (group for group in groups if can_throttle(group))
        return group

    async def pci_functions(self, domain: DomainId) -> list[str]:
        uuid = next(info.uuid for info in await self.toolstack.list() if info.id == domain)
        return sorted(entry.name for entry in (self.run_dir / "domains" / str(uuid) / "pci").glob("*"))

    def leftovers(self) -> list[str]:
        found = super().leftovers()
        for uuid in self._mine:
            found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/xenpod-*/{uuid}")]
            found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"xenpod-*/{uuid}")]
        domains = self.run_dir / "domains"
        found += [str(path) for path in domains.iterdir()] if domains.exists() else []
        return found + [line for line in _command_lines() if str(self.run_dir) in line]


class LibxlStage(_Common):
    """A stage with the Xen toolstack."""

    cpupool = "Pool-0"
    memory = 160 * MIB
    """Debian's kernel with its initramfs needs 80 to boot."""

    def _make(self) -> Toolstack:
        from protect.toolstack.libxl.settings import LibxlSettings
        from protect.toolstack.libxl.toolstack import LibxlToolstack

        # Debian's kernels refuse the crash key from the host by default. A guest that keeps a disk has an
        # hour to release it: nothing else may wait for the disk.
        settings = LibxlSettings(kernel_arguments="quiet sysrq_always_enabled", disk_patience=Seconds(3600.0))
        return LibxlToolstack(self.folder.parent / "libxl", self.guest_dir, settings)

    async def crash(self, domain: DomainId) -> None:
        """Crash the guest by its own SysRq."""
        await asyncio.to_thread(subprocess.run, ["xl", "sysrq", str(domain), "c"], check=True, timeout=60)

    async def destroy_behind(self, domain: DomainId) -> None:
        await asyncio.to_thread(subprocess.run, ["xl", "destroy", str(domain)], check=True, timeout=60)

    async def shares(self, info: DomainInfo) -> CpuShares:
        """In xl's form: the weight is one vCPU's."""
        command = ["xl", "sched-credit2", "-d", str(info.id)]
        shown = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
        weight, cap = map(int, shown.stdout.split()[-2:])
        return CpuShares(weight * info.vcpus, cap or info.vcpus * 100)

    def disk_group(self, info: DomainInfo) -> Path:
        return DiskGroups.find().group(str(info.uuid))

    async def pci_functions(self, domain: DomainId) -> list[str]:
        from xenbind.context import Context
        from xenbind.disk import functions

        with Context() as context:
            return functions(context, domain)

    def leftovers(self) -> list[str]:
        groups = [DiskGroups.find().group(str(uuid)) for uuid in self._mine]
        return super().leftovers() + [str(group) for group in groups if group.exists()]


def _has_quota(group: Path) -> bool:
    return any((group / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us"))


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


async def soon(work: Awaitable[object]) -> object:
    """``work`` within the suite's patience."""
    return await asyncio.wait_for(work, PATIENCE)
