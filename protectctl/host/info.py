"""``protect host``: shows the host from protectd's view, and the usable handlers of xenpod-cri."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping
from typing import Any

import grpc.aio

from daemonkit.rpc.channels import channel
from protectctl import show
from protectctl.output import as_dict, structured
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as cri_grpc
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_TIMEOUT_SECONDS = 60.0

Handlers = Mapping[str, Mapping[str, Any]]
"""The entry ``handlers`` of a verbose CRI Status: the details of each handler, by name."""


async def host(options: argparse.Namespace) -> None:
    """Show the host.  If xenpod-cri does not answer, its handlers are left out."""
    async with channel(options.socket) as link:
        stub = protect_pb2_grpc.HostStub(link)
        answer = await stub.Info(pb.InfoRequest(), timeout=_TIMEOUT_SECONDS)
    handlers = await _handlers(options)
    document = as_dict(answer) | {"handlers": handlers}
    if not structured(options.output, document, names=[platform.node()]):
        show.pairs([*_rows(answer), *_handler_rows(handlers or {})])


async def _handlers(options: argparse.Namespace) -> Handlers | None:
    """The handlers of xenpod-cri; None, with a note on stderr, if it does not answer."""
    try:
        async with channel(options.cri_socket) as link:
            stub = cri_grpc.RuntimeServiceStub(link)
            reply = await stub.Status(cri.StatusRequest(verbose=True), timeout=_TIMEOUT_SECONDS)
        found: Handlers = json.loads(reply.info.get("handlers", "{}"))
    except grpc.aio.AioRpcError as error:
        show.note(f"xenpod-cri does not tell its handlers: {error.details()}")
        return None
    return found


def _rows(answer: pb.InfoResponse) -> list[tuple[str, str]]:
    memory = answer.memory
    return [
        ("version", answer.version),
        ("toolstack", f"{answer.toolstack} ({answer.xen_version})"),
        ("security boundary", "yes" if answer.security_boundary else "NO"),
        ("cpus", str(answer.cpus)),
        ("zone memory", f"{show.mib(memory.total_bytes)}, free {show.mib(memory.free_bytes)}"),
        *_scratch(answer),
        ("reserved for pods", _some(memory.reservations_bytes)),
        ("other domains", _some(memory.foreign_bytes)),
        ("dom0", _dom0(memory)),
        ("room for zones", f"{answer.zones_most}: {answer.zones_bound}" if answer.zones_most else ""),
        ("profiles", ", ".join(answer.profiles)),
        ("kernels from images", "yes" if answer.zone_kernels else "no"),
        *_capabilities(answer),
        *(("notice", notice) for notice in answer.notices),
        *(("unknown domain", domain) for domain in answer.unknown_domains),
    ]


def _scratch(answer: pb.InfoResponse) -> list[tuple[str, str]]:
    if not answer.HasField("scratch"):
        return []
    disks = answer.scratch
    said = f"{show.mib(disks.promised_bytes)} promised, {show.mib(disks.written_bytes)} of them written"
    free = "overcommitted by setting" if disks.overcommit else f"free {show.mib(disks.free_bytes)}"
    return [("scratch disks", f"{said}, {free}")]


def _some(size_bytes: int) -> str:
    return show.mib(size_bytes) if size_bytes else ""


def _dom0(memory: pb.MemoryLedger) -> str:
    if not memory.dom0_bytes:
        return ""
    sharing = f", of which file servers may use {show.mib(memory.sharing_bytes)}"
    return show.mib(memory.dom0_bytes) + (sharing if memory.sharing_bytes else "")


def _capabilities(answer: pb.InfoResponse) -> list[tuple[str, str]]:
    if not answer.HasField("capabilities"):
        return []
    can = answer.capabilities
    known = ("pv", "hvm", "hap", "iommu", "flask", "disk_rates")
    features = [name.replace("_", " ") for name in known if getattr(can, name)]
    return [
        ("capabilities", ", ".join(features)),
        ("devices", ", ".join([*can.devices, *(f"{name} (absent)" for name in can.absent_devices)])),
        ("labels", ", ".join(can.labels)),
    ]


def _handler_rows(handlers: Handlers) -> list[tuple[str, str]]:
    return [(f"handler {show.plain(name)}", show.plain(_verdict(one))) for name, one in handlers.items()]


def _verdict(handler: Mapping[str, Any]) -> str:
    if why := handler.get("error"):
        return f"no: {why}"
    label = f"label {handler['seclabel']}" if handler.get("seclabel") else ""
    said = [text for text in (handler.get("mode"), label, handler.get("notice")) if text]
    return ", ".join(["yes", *said])
