"""``protectd --config FILE``: assembles the daemon, and serves until a signal to stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from daemonkit import daemon, lifecycle
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken, Refused
from daemonkit.host.lookup import Lookups
from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.loop.in_flight import InFlight
from daemonkit.observe.audit.log import auditing
from daemonkit.observe.exposition import serving_metrics
from daemonkit.observe.traces import tracing
from daemonkit.rpc.server import serve_unix
from protect.assembly import Assembly, HostPorts
from protect.channel.link import Link
from protect.config import ProtectdConfig, ToolstackKind
from protect.model.capacity.modes import choose, kernel_lacks
from protect.model.toolstack import Capabilities, Toolstack
from protect.network.splice import splice
from protect.server.host import mode_notices, rate_notices
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.store import LOG_LIMIT_BYTES, SqliteStore
from protect.stdio.log import WorkloadLog
from protect.volumes.block import HostBlockDevices
from protect.volumes.host_files import HostFileVolumes
from protect.volumes.host_volumes import HostVolumes
from protect.volumes.scratch import ScratchFiles
from protect.workloads import sharing
from protect.zones.capacity import preflight

log = logging.getLogger(__name__)

_DEFAULT_CONFIG = Path("/etc/protect/protectd.toml")
_WAL_PERIOD_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    description = "Keeps zones: one Xen virtual machine each."
    return daemon.main(
        "protectd", description, ProtectdConfig, _DEFAULT_CONFIG, serve_zones, arguments, _imports
    )


def _imports(config: ProtectdConfig) -> None:
    """Import the toolstack.  The fake saves the 2 MiB of libxl."""
    if config.toolstack is ToolstackKind.LIBXL:
        import protect.toolstack.libxl.toolstack  # noqa: F401


async def serve_zones(config: ProtectdConfig, stop: asyncio.Event) -> None:
    """Adopt the existing zones and serve.  Zones go on running afterwards."""
    config.check_host()
    async with AsyncExitStack() as stack:
        claim(config, stack)
        await stack.enter_async_context(tracing(config.traces, "protectd"))
        store = SqliteStore(config.state_dir / "protect.db")
        stack.callback(store.close)
        toolstack = build_toolstack(config)
        stack.push_async_callback(toolstack.close)
        await toolstack.start()
        in_flight = InFlight()
        await check_toolstack(config, toolstack)
        protectd = assemble(config, store, toolstack, in_flight)
        stack.push_async_callback(protectd.close)
        await preflight.check_host(protectd.registry, toolstack, config)
        recorded = await protectd.loader.load()
        # After the load: an earlier report of an end would find no zone.
        watching = asyncio.ensure_future(protectd.deaths.watch())
        stack.callback(watching.cancel)
        for work in _upkeep(protectd, store):
            stack.callback(asyncio.ensure_future(work).cancel)
        for zone in recorded:
            reconciling = protectd.reconcile.reconcile(zone)
            protectd.lifetime.tasks.spawn(reconciling, f"reconcile zone {zone.runtime.id}")
        await stack.enter_async_context(serving_metrics(config.metrics, "protectd", [protectd.figures.read]))
        audit = await stack.enter_async_context(auditing(config.audit, "protectd", config.state_dir))
        if audit is not None:
            audit.pod_of = protectd.registry.pod_of
        serving = serve_unix(
            config.socket_path,
            protectd.add_services,
            name="protectd",
            tasks=protectd.lifetime.tasks,
            in_flight=in_flight,
            audit=audit,
        )
        async with serving:
            lifecycle.notify_ready(f"serving with {len(protectd.registry.zones)} zones")
            await _wait(stop, watching)
            protectd.stop()


def _upkeep(protectd: Assembly, store: SqliteStore) -> list[Coroutine[Any, Any, None]]:
    """Work for as long as the daemon runs."""
    return [
        sharing.watch_servers(
            protectd.registry, protectd.toolstack, protectd.ports.volumes, protectd.lifetime.tasks
        ),
        protectd.periodic.run(),
        protectd.follower.run(),
        protectd.clocks.keep(),
        protectd.sampler.follow(),
        _checkpoint_store(store),
    ]


def build_toolstack(config: ProtectdConfig) -> Toolstack:
    """Build the configured toolstack.  Only this function knows which toolstacks exist."""
    if config.toolstack is ToolstackKind.FAKE:
        from protect.toolstack.fake import FakeToolstack

        return FakeToolstack(
            config.run_dir / "fake", config.guest_dir, settings=config.fake, faults=config.faults.toolstack
        )
    from protect.toolstack.libxl.toolstack import LibxlToolstack

    return LibxlToolstack(config.state_dir / "libxl", config.guest_dir, settings=config.libxl)


async def check_toolstack(config: ProtectdConfig, toolstack: Toolstack) -> None:
    """WrongKey: the configuration asks for more than this host has."""
    total = (await toolstack.physical_info()).total_memory_bytes
    if not config.memory.total and total <= config.memory.reserve:
        raise WrongKey("memory.reserve", f"{config.memory.reserve} is all the memory that zones could have")
    can = toolstack.capabilities()
    check_modes(config, can)
    for notice in [*mode_notices(config, can), *rate_notices(config, can)]:
        log.warning("%s", notice)


def assemble(
    config: ProtectdConfig, store: SqliteStore, toolstack: Toolstack, in_flight: InFlight
) -> Assembly:
    """Assemble the daemon with the ports of this host."""
    registry = Registry(store, config.timeouts)
    lookup, tenant_of = config.guest_dir / "lookup", registry.tenant_of
    ports = HostPorts(
        volumes=HostVolumes(config.run_dir / "volumes", lookup, tenant_of),
        files=HostFileVolumes(Lookups(lookup, tenant_of)),
        devices=HostBlockDevices(Lookups(lookup, tenant_of)),
        scratch=ScratchFiles(
            config.scratch_dir, config.scratch.reserve, overcommit=config.scratch.overcommit
        ),
        splice=splice,
        logs=WorkloadLog.open,
        links=functools.partial(Link, scheduler=FairScheduler(in_flight)),
    )
    ledger = Ledger(config.memory.total, config.memory.reserve)
    return Assembly(config, toolstack, ports, registry, ledger)


def check_modes(config: ProtectdConfig, capabilities: Capabilities) -> None:
    """WrongKey: the kernel cannot boot in the mode of a profile."""
    for name in config.profile_names():
        mode = choose(config.profile(name).mode, capabilities)
        if mode not in capabilities.kernel_modes:
            cause = f"its zones are {mode.value}, and their kernel cannot boot so: {kernel_lacks(mode)}"
            raise WrongKey(f"profiles.{name}.mode", f"{cause} (set another mode, or libxl.kernel)")


def claim(config: ProtectdConfig, stack: AsyncExitStack) -> None:
    """Lock both directories: a second protectd would remove unknown files there."""
    lifecycle.make_directories(config.run_dir, config.state_dir)
    for what, lock in (
        ("state directory", config.state_dir / "lock"),
        ("run directory", config.run_dir / "protectd.lock"),
    ):
        refusal = Refused(f"use {what}", str(lock.parent), "another protectd runs on it")
        stack.enter_context(lifecycle.hold_lock(lock, refusal))


async def _wait(stop: asyncio.Event, watching: asyncio.Task[None]) -> None:
    """Wait for ``stop``.  Broken: the watch for ends of zones failed; only a restart repairs the watch."""
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopped, watching], return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        stopped.cancel()
        raise Broken("watch domains", "", "the toolstack tells no more ends") from watching.exception()


async def _checkpoint_store(store: SqliteStore) -> None:
    while True:
        await asyncio.sleep(_WAL_PERIOD_SECONDS)
        if store.wal_bytes() > LOG_LIMIT_BYTES:
            await asyncio.to_thread(store.checkpoint)


if __name__ == "__main__":
    sys.exit(main())
