"""``protect doctor``: checks this host, and collects the facts for a judgement from afar."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf.message import Message

from protectctl import daemons, show
from protectctl.command_errors import CheckFailed, Command, CommandFailed
from protectctl.output import as_dict, plain, structured
from protectctl.usage.verbs import asks_cri, asks_protectd, named
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as reservations

if TYPE_CHECKING:
    from hostsetup.doctor.doctor_settings import DoctorSettings
    from hostsetup.doctor.machine import CheckedMachine, CheckResult
    from protect.model.capacity.host_resources import HostNotice

_TIMEOUT_SECONDS = 10.0
_CONSOLE_LINES = 500
_MOST_CONSOLES = 256
_MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "unknown": "unknown"}


def add_arguments(noun: argparse.ArgumentParser) -> None:
    asks_cri(asks_protectd(named(noun, "doctor")))
    noun.add_argument("--all", action="store_true", help="show what is healthy, too")
    text = "collect versions, configuration, state, logs and consoles in one file (tar.gz), redacted"
    noun.add_argument("--bundle", type=Path, metavar="FILE", help=text)
    for name, default in (
        ("--config", "/etc/protect/protectd.toml"),
        ("--cri-config", "/etc/xenpod/cri.toml"),
        ("--kubelet-config", "/var/lib/kubelet/config.yaml"),
        ("--kubelet-config-dir", "/etc/kubernetes/kubelet.conf.d"),
    ):
        noun.add_argument(name, type=Path, default=Path(default), metavar="PATH", help=f"default: {default}")


async def doctor(options: argparse.Namespace) -> None:
    """Check the host, and show each fault with its fix.  CheckFailed: a fault keeps pods from running."""
    # Imported here, because other commands do without the daemons' configuration.
    from hostsetup.doctor import checks
    from hostsetup.doctor.machine import CheckedMachine

    machine = CheckedMachine()
    settings = await _settings(options, machine)
    results = await asyncio.to_thread(checks.run_checks, machine, settings)
    if options.bundle:
        await _write_bundle(options, machine, settings, results)
    _show(options, results)
    if not checks.is_healthy(results):
        raise CheckFailed


async def _settings(options: argparse.Namespace, machine: CheckedMachine) -> DoctorSettings:
    """The settings in the files.  For an unreadable file, the defaults: another check reports the file."""
    from daemonkit import config
    from daemonkit.faults import Fault
    from hostsetup.doctor import checks
    from hostsetup.doctor.doctor_settings import CriFolders, DoctorSettings
    from protect.config import ProtectdConfig

    found = DoctorSettings(
        protectd_file=options.config,
        cri_file=options.cri_config,
        protect_socket=options.socket,
        cri_socket=options.cri_socket,
        kubelet_file=options.kubelet_config,
        kubelet_dir=options.kubelet_config_dir,
    )
    try:
        found = replace(found, protectd=config.load_config(ProtectdConfig, options.config))
        found = replace(found, cri=config.load_config(CriFolders, options.cri_config, unknown_keys=True))
    except Fault as fault:
        show.note(f"{fault}: other checks go by the defaults")
    notices = await _notices(options)
    if notices is None:
        notices = await asyncio.to_thread(checks.notices_by_xl, machine, found.protectd)
    return replace(found, notices=notices)


async def _notices(options: argparse.Namespace) -> Sequence[HostNotice] | None:
    """protectd's own preflight; None: protectd does not answer."""
    from protect.model.capacity.host_resources import HostNotice

    try:
        async with daemons.host(options) as service:
            info = await service.Info(pb.InfoRequest(), timeout=_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError:
        return None  # another check reports the missing answer
    return [HostNotice(one.setting, one.place, one.value, one.wanted, one.effect) for one in info.preflight]


def _document(results: Sequence[CheckResult]) -> dict[str, object]:
    found = [
        {"check": one.check, "state": one.verdict.value, "says": one.says, "fix": one.fix} for one in results
    ]
    return {"checks": found}


def _show(options: argparse.Namespace, results: Sequence[CheckResult]) -> None:
    amiss = [one for one in results if one.verdict.value != "ok"]
    if structured(options.output, _document(results), names=(one.check for one in amiss)):
        return
    for one in results if options.all else amiss:
        sys.stdout.write(f"{_MARKS[one.verdict.value]:8} {plain(one.check)}: {plain(one.says)}\n")
        if one.fix:
            sys.stdout.write(f"         fix: {plain(one.fix)}\n")
    sys.stdout.write(f"{len(results) - len(amiss)} of {len(results)} checks are healthy\n")


async def _write_bundle(
    options: argparse.Namespace,
    machine: CheckedMachine,
    settings: DoctorSettings,
    results: Sequence[CheckResult],
) -> None:
    from hostsetup.doctor import bundle

    state = [(name, content) async for name, content in _state(options)]
    found = json.dumps(_document(results), indent=2).encode()

    def write() -> list[str]:
        parts = [("doctor.json", found), *state, *bundle.collect(machine, settings)]
        return bundle.write_bundle(options.bundle, iter(parts))

    try:
        missing = await asyncio.to_thread(write)
    except OSError as error:
        raise CommandFailed(f"write {options.bundle}: {error.strerror or error}") from error
    show.note(f"{options.bundle} is written; {len(missing)} parts are missing, and listed in it")


async def _state(options: argparse.Namespace) -> AsyncIterator[tuple[str, bytes | str]]:
    """The daemons' answers, and the zones' output on their consoles."""
    from hostsetup.doctor import bundle

    async with (
        daemons.host(options) as host,
        daemons.zones(options) as zones,
        daemons.workloads(options) as workloads,
        daemons.reservations(options) as reserving,
        daemons.runtime(options) as runtime,
    ):
        yield await _part("host", host.Info(pb.InfoRequest(), timeout=_TIMEOUT_SECONDS))
        yield await _part("zones", zones.ListZones(pb.ListZonesRequest(), timeout=_TIMEOUT_SECONDS))
        yield await _part(
            "strangers", zones.ListStrangers(pb.ListStrangersRequest(), timeout=_TIMEOUT_SECONDS)
        )
        yield await _part("statistics", zones.ZoneStats(pb.ZoneStatsRequest(), timeout=_TIMEOUT_SECONDS))
        yield await _part(
            "workloads", workloads.ListWorkloads(pb.ListWorkloadsRequest(), timeout=_TIMEOUT_SECONDS)
        )
        listing = reserving.ListReservations(reservations.ListReservationsRequest(), timeout=_TIMEOUT_SECONDS)
        yield await _part("reservations", listing)
        status = runtime.Status(cri.StatusRequest(verbose=True), timeout=_TIMEOUT_SECONDS)
        yield await _part("cri-status", status, bundle.of_status)
        metrics = runtime.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest(), timeout=_TIMEOUT_SECONDS)
        yield await _part("metrics", metrics)
        try:
            listed = await daemons.zone_list(zones)
        except grpc.aio.AioRpcError:
            return  # already reported for "zones"
        for zone in listed[:_MOST_CONSOLES]:
            request = pb.ZoneConsoleRequest(id=zone.id, lines=_CONSOLE_LINES)
            try:
                pieces = [piece.data async for piece in zones.ZoneConsole(request, timeout=_TIMEOUT_SECONDS)]
                yield f"consoles/{zone.id}", b"".join(pieces)
            except grpc.aio.AioRpcError as error:
                yield f"consoles/{zone.id}", str(error.details())


async def _part(
    name: str,
    asked: Awaitable[Message],
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda found: found,
) -> tuple[str, bytes | str]:
    try:
        return f"state/{name}.json", json.dumps(change(as_dict(await asked)), indent=1).encode()
    except grpc.aio.AioRpcError as error:
        return f"state/{name}.json", str(error.details())


COMMANDS: Mapping[str, Command] = {"doctor": doctor}
