"""Compares the audit log of a daemon with independent records of the daemon's calls."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from daemonkit.observe.audit.log_files import paths, verify_folder
from tests.support.cri.cri_daemons import CriNode
from tests.support.observe.call_record import RecordedCall
from tests.support.observe.prometheus import metrics_address
from tests.support.waiting import until

READING: Mapping[str, frozenset[str]] = {
    "runtime.v1.RuntimeService": frozenset(
        {
            "Version", "Status", "RuntimeConfig", "PodSandboxStatus", "ListPodSandbox", "StreamPodSandboxes",
            "ContainerStatus", "ListContainers", "StreamContainers", "ContainerStats", "ListContainerStats",
            "StreamContainerStats", "PodSandboxStats", "ListPodSandboxStats", "StreamPodSandboxStats",
            "GetContainerEvents", "ListMetricDescriptors", "ListPodSandboxMetrics", "StreamPodSandboxMetrics",
        }
    ),
    "runtime.v1.ImageService": frozenset({"ListImages", "StreamImages", "ImageStatus", "ImageFsInfo"}),
    "xenpod.images.v1.Images": frozenset({"WatchPulls", "List", "Inspect", "ListKernels"}),
    "protect.v1.Zones": frozenset(
        {"GetZone", "ListZones", "ZoneConsole", "ZoneFacts", "ZoneStats", "ListStrangers"}
    ),
    "protect.v1.Workloads": frozenset({"WaitWorkload", "GetWorkload", "ListWorkloads", "WorkloadStats"}),
    "protect.v1.Devices": frozenset({"ListDevices"}),
    "protect.v1.Host": frozenset({"Info", "Watch"}),
    "protect.v1.Reservations": frozenset({"ListReservations", "WatchCapacity"}),
}  # fmt: skip
"""The RPCs that change nothing.  Kept by hand beside the contracts, to test the daemons' own rule."""

ON: Mapping[str, object] = {"audit": {"to": "file"}, "metrics": {"address": "127.0.0.1:0"}}
"""Settings of a daemon for the comparison of its log."""

_ENDED = re.compile(r" daemonkit\.rpc\.interceptors: (?:slow call )?(\w+)\.(\w+) server=\S+ code=(\w+)")


def changes(service: str, rpc: str) -> bool:
    """Whether calls of this RPC belong into the log."""
    return rpc not in READING[service]


def entries(folder: Path) -> list[dict[str, Any]]:
    """The entries of a log in their order; the chain must be whole."""
    assert verify_folder(folder).wrong == []
    return [json.loads(line) for path in paths(folder) for line in path.read_text().splitlines()]


def _text(folder: Path) -> str:
    """The whole text of the log's files."""
    return "".join(path.read_text(errors="replace") for path in folder.iterdir())


def counted(log: Path) -> Counter[tuple[str, str, str]]:
    """Calls that change something, by service, RPC and code, in the counters of the daemon with this log."""
    with urlopen(f"http://{metrics_address(log)}/metrics", timeout=60) as reply:
        page = reply.read().decode()
    found: Counter[tuple[str, str, str]] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "xenpod_audit_lost_total":
                assert sample.value == 0
            if sample.name != "grpc_server_handled_total":
                continue
            service, rpc, code = (sample.labels[f"grpc_{name}"] for name in ("service", "method", "code"))
            if service in READING and changes(service, rpc):
                found[service, rpc, code] += int(sample.value)
    return found


def audited(found: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str, str]]:
    """The entries, counted in the same way."""
    return Counter((*one["rpc"].split("/"), one["code"]) for one in found)


def logged(log: Path) -> list[tuple[str, str]]:
    """``Service.Rpc`` and code of each call that changes something, in the order of the debug log."""
    short = {service.rpartition(".")[2]: service for service in READING}
    found = []
    for service, rpc, code in _ENDED.findall(log.read_text(errors="replace")):
        if service in short and changes(short[service], rpc):
            found.append((f"{service}.{rpc}", code))
    return found


def folders(node: CriNode) -> tuple[Path, Path]:
    """The audit logs of xenpod-cri and protectd."""
    return (
        node.folder / "state" / "audit" / "xenpod-cri",
        node.protectd.folder / "state" / "audit" / "protectd",
    )


async def node_agrees(node: CriNode, *secrets: str) -> int:
    """``agree`` for both daemons of a node that was started with ``ON``; how many entries xenpod-cri has."""
    ours, theirs = folders(node)
    await agree(theirs, node.protectd.daemon.log, *secrets)
    return await agree(ours, node.daemon.log, *secrets)


async def agree(folder: Path, log: Path, *secrets: str) -> int:
    """Wait until the log in ``folder`` has every counted call; the number of entries.

    The entries must be in the order of the debug log, and contain no secret.
    """
    found = entries(folder)
    noted: Counter[tuple[str, str, str]] = Counter()
    calls: Counter[tuple[str, str, str]] = Counter()

    async def equal() -> bool:
        nonlocal found, noted, calls
        calls = await asyncio.to_thread(counted, log)
        found = entries(folder)
        noted = audited(found)
        return noted == calls

    await until(equal, what=lambda: f"only noted: {noted - calls}, only counted: {calls - noted}")
    assert in_log_order(found) == logged(log)
    assert [secret for secret in secrets if secret in _text(folder)] == []
    return len(found)


def in_log_order(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The entries, as ``logged`` has the calls."""
    return [(one["rpc"].rpartition(".")[2].replace("/", "."), one["code"]) for one in found]


def out_of_order(found: Iterable[Mapping[str, Any]], record: Iterable[RecordedCall]) -> str:
    """The first mistake of the entries beside a record of the same calls; "": no mistake.

    Each entry must match a recorded call, and each recorded call an entry. An entry may not come before the
    entry of a call that had ended before its own call began; a cancelled call may end at any time later.
    """
    left = sorted((call for call in record if changes(*call.rpc.split("/"))), key=lambda call: call.ended)
    for entry in found:
        call = next((call for call in left if _same(entry, call)), None)
        if call is None:
            return f"this entry is no recorded call: {entry}"
        left.remove(call)
        for other in left:
            if other.ended < call.begun and not other.given_up:
                return f"this entry is before one of a call that had ended: {entry}, {other}"
    return f"these calls have no entry: {left}" if left else ""


def _same(entry: Mapping[str, Any], call: RecordedCall) -> bool:
    if entry["rpc"] != call.rpc or (entry["code"] != call.code and not call.given_up):
        return False
    said = entry.get("request", {})
    return isinstance(said, str) or _names(said) == _names(call.request)


def _names(request: Mapping[str, Any]) -> dict[str, object]:
    """Subject of a request: its ids, the name of a pod or container, the image."""
    named: dict[str, object] = {key: value for key, value in request.items() if key.endswith("_id")}
    for outer, inner in (("config", "metadata"), ("image", "image")):
        if isinstance(request.get(outer), Mapping):
            named[outer] = _plain(request[outer].get(inner))
    return named


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: value[key] for key in ("name", "namespace", "uid") if key in value}
    return value
