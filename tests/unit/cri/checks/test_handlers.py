"""Handlers' requirements of a host: a handler is listed if the host meets them, else refused by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.checks.handlers import fallback, trouble, unmet, zone_mode
from cri.config import CriConfig, HandlerConfig, HandlerMode
from daemonkit.config import Bytes, load_config
from daemonkit.faults import Invalid
from tests.support.cri.cri_node import Rig, node_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

MIB = 1 << 20
BARE = pb.HostCapabilities(pv=True)
WHOLE = pb.HostCapabilities(
    pv=True,
    hvm=True,
    hap=True,
    iommu=True,
    hypervisor_version="4.17",
    devices=["gpu0"],
    absent_devices=["gpu1"],
    labels=["sev-snp"],
)


def _host(can: pb.HostCapabilities | None, mode: pb.ZoneMode.ValueType = pb.ZONE_MODE_PV) -> pb.InfoResponse:
    bounds = pb.ProfileBounds(
        name="default", memory_min_bytes=MIB, memory_max_bytes=512 * MIB, vcpus_max=4,
        memory_bytes=256 * MIB, vcpus=2, mode=mode,
    )  # fmt: skip
    return pb.InfoResponse(profiles=["default"], profile_bounds=[bounds], capabilities=can)


@pytest.mark.parametrize(
    ("requires", "why"),
    [
        ("hvm", "this host has none"),
        ("hap", "this host has none"),
        ("iommu", "this host has none"),
        ("xen>=4.17", "this host runs no Xen"),
        ("device:gpu0", "[host.devices] of protectd.toml has none of that name"),
        ("label:sev-snp", "[host] labels of protectd.toml lacks it"),
    ],
)
def test_each_missing_requirement_is_named(requires: str, why: str) -> None:
    handler = HandlerConfig(requires=(requires,))
    assert unmet(handler, _host(WHOLE)) == ""
    assert unmet(handler, _host(BARE)) == f"requires {requires}, and {why}"


@pytest.mark.parametrize(
    ("has", "wanted", "lacking"),
    [
        ("4.17", "xen>=4.9", ""),
        ("4.17", "xen >= 4.17", ""),
        ("4.17", "xen>=4.18", "requires xen>=4.18, and this host runs 4.17"),
        ("4.17", "xen>=5.0", "requires xen>=5.0, and this host runs 4.17"),
        ("5.0", "xen>=4.18", ""),
    ],
)
def test_versions_are_numbers(has: str, wanted: str, lacking: str) -> None:
    can = pb.HostCapabilities(pv=True, hypervisor_version=has)
    assert unmet(HandlerConfig(requires=(wanted,)), _host(can)) == lacking


def test_all_missing_requirements_are_listed() -> None:
    handler = HandlerConfig(requires=("hvm", "device:gpu1", "label:tdx"))
    said = unmet(handler, _host(WHOLE))
    assert said == (
        "requires device:gpu1, and what [host.devices] of protectd.toml has under that name is not there;"
        " requires label:tdx, and [host] labels of protectd.toml lacks it"
    )


PV, PVH, AUTO = pb.ZONE_MODE_PV, pb.ZONE_MODE_PVH, pb.ZONE_MODE_AUTO
NO_HAP = pb.HostCapabilities(pv=True, hvm=True)
NO_PV = pb.HostCapabilities(hvm=True, hap=True)
OLD_KERNEL = pb.HostCapabilities(pv=True, hvm=True, hap=True, kernel_lacks=[PVH])


@pytest.mark.parametrize(
    ("mode", "profile", "can", "zones", "falls", "lacking"),
    [
        (HandlerMode.PROFILE, PV, BARE, PV, False, ""),
        (HandlerMode.PROFILE, PVH, WHOLE, PVH, False, ""),
        (HandlerMode.PROFILE, PVH, BARE, PVH, False, "requires hvm"),
        (HandlerMode.PROFILE, AUTO, BARE, PV, True, ""),
        (HandlerMode.PVH, PV, WHOLE, PVH, False, ""),
        (HandlerMode.PVH, PV, BARE, PVH, False, "requires hvm"),
        (HandlerMode.PV, PVH, WHOLE, PV, False, ""),
        (HandlerMode.PV, PVH, NO_PV, PV, False, "hypervisor runs none"),
        (HandlerMode.AUTO, PV, WHOLE, PVH, False, ""),
        (HandlerMode.AUTO, PV, NO_HAP, PV, True, ""),
        (HandlerMode.AUTO, PV, NO_PV, PVH, False, ""),
        (HandlerMode.AUTO, PV, pb.HostCapabilities(), PV, True, "hypervisor runs none"),
        (HandlerMode.AUTO, PV, OLD_KERNEL, PV, True, ""),
        (HandlerMode.PVH, PV, OLD_KERNEL, PVH, False, "kernel for zones does not boot so"),
        (HandlerMode.PROFILE, PV, OLD_KERNEL, PV, False, ""),
    ],
)
def test_the_mode_follows_from_host_and_handler(
    mode: HandlerMode,
    profile: pb.ZoneMode.ValueType,
    can: pb.HostCapabilities,
    zones: pb.ZoneMode.ValueType,
    falls: bool,
    lacking: str,
) -> None:
    handler, host = HandlerConfig(mode=mode), _host(can, profile)
    assert (zone_mode(handler, host), bool(fallback(handler, host))) == (zones, falls)
    assert lacking in unmet(handler, host) and bool(lacking) is bool(unmet(handler, host))


@pytest.mark.parametrize(
    ("can", "lacks"),
    [
        (BARE, "hvm (VT-x or AMD-V)"),
        (NO_HAP, "hap (EPT or NPT)"),
        (OLD_KERNEL, "boots as pvh (CONFIG_PVH)"),
    ],
)
def test_a_fallback_names_the_missing_feature(can: pb.HostCapabilities, lacks: str) -> None:
    said = fallback(HandlerConfig(mode=HandlerMode.AUTO), _host(can))
    assert said.startswith("mode auto gives pv zones, as this host lacks ") and said.endswith(lacks)


def test_a_kernel_of_the_handlers_own_is_not_protectds() -> None:
    """The kernel's abilities are known after the first boot of a zone."""
    own = HandlerConfig(kernel="example/kernel:1", mode=HandlerMode.AUTO)
    assert (zone_mode(own, _host(OLD_KERNEL)), fallback(own, _host(OLD_KERNEL))) == (PVH, "")
    assert unmet(replace(own, mode=HandlerMode.PVH), _host(OLD_KERNEL)) == ""


LABEL = "system_u:system_r:tenant_a_t"


def test_labels_need_a_hypervisor_with_the_label() -> None:
    handler = HandlerConfig(seclabel=LABEL)
    assert "no FLASK" in unmet(handler, _host(WHOLE)) and LABEL in unmet(handler, _host(WHOLE))
    flask = _host(pb.HostCapabilities(pv=True, flask=True))
    assert unmet(handler, flask) == ""
    flask.unknown_seclabels.append("system_u:system_r:other_t")
    assert unmet(handler, flask) == ""
    flask.unknown_seclabels.append(LABEL)
    assert unmet(handler, flask).endswith("which the hypervisor's policy lacks")
    assert "older" in unmet(handler, _host(None))


def test_rates_of_disks_need_an_enforcing_kernel() -> None:
    handler = HandlerConfig(disk_write_operations=100)
    assert "cannot hold" in unmet(handler, _host(pb.HostCapabilities(pv=True)))
    assert unmet(handler, _host(pb.HostCapabilities(pv=True, disk_rates=True))) == ""
    assert unmet(HandlerConfig(), _host(pb.HostCapabilities(pv=True))) == ""
    assert "is older" in unmet(handler, _host(None))


def test_an_older_protectd_meets_no_requirement() -> None:
    older = _host(None)
    assert unmet(HandlerConfig(), older) == ""
    for handler in (HandlerConfig(requires=("hvm",)), HandlerConfig(mode=HandlerMode.PV)):
        assert "older" in unmet(handler, older)


def test_bounds_are_within_the_profile_and_hold_its_size() -> None:
    host = _host(BARE)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"memory_min": Bytes(600 * MIB)}, "memory_min of 600 MiB is not between the 1 and 512 MiB"),
        ({"memory_max": Bytes(600 * MIB)}, "memory_max of 600 MiB is not between"),
        ({"memory_max": Bytes(128 * MIB)}, "256 MiB of its profile are not within"),
        ({"memory_min": Bytes(300 * MIB)}, "256 MiB of its profile are not within"),
    )
    for bounds, cause in cases:
        wrong = trouble(HandlerConfig(**bounds), host)
        assert wrong is not None and cause in wrong.cause
    for count, cause in ((5, "5 vcpus are more than the 4"), (1, "the 2 of its profile are more than")):
        wrong = trouble(HandlerConfig(vcpus_max=count), host)
        assert wrong is not None and cause in wrong.cause
    fits = HandlerConfig(memory=Bytes(128 * MIB), memory_max=Bytes(128 * MIB), vcpus=1, vcpus_max=1)
    assert trouble(fits, host) is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('devices = ["GPU 0"]', "is not 1 to 63 of [a-z0-9._-]"),
        ('sharing = "9p"', "nothing to choose"),
        ('seclabel = "domU_t"', "is not user:role:type"),
        ('seclabel = "a:b:c d"', "is not user:role:type"),
        ('seclabel = "a:b:c\\n"', "is not user:role:type"),
        (f'seclabel = "a:b:{"c" * 252}"', "is not user:role:type"),
        ('colour = "blue"', "unknown key 'handlers.fast.colour'; known here: annotations"),
        ('memory = "2GiB"\nmemory_max = "1GiB"', "is more than memory_max"),
        ('memory_min = "2GiB"\nmemory_max = "1GiB"', "is more than memory_max"),
        ("vcpus = 3\nvcpus_max = 2", "is more than vcpus_max"),
    ],
)
def test_impossible_handler_key_fails_the_start(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "cri.toml"
    path.write_text(f"[handlers.fast]\n{line}\n")
    with pytest.raises(Invalid) as raised:
        load_config(CriConfig, path)
    assert cause in str(raised.value) and "handlers.fast." in str(raised.value)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    handlers = {
        "xenpod": HandlerConfig(),
        "fast": HandlerConfig(mode=HandlerMode.AUTO),
        "sev": HandlerConfig(mode=HandlerMode.PVH, requires=("label:sev-snp",)),
        "gpu": HandlerConfig(requires=("device:gpu0",)),
        "apart": HandlerConfig(seclabel=LABEL),
    }
    async with rig(tmp_path, config=replace(node_config(tmp_path), handlers=handlers)) as node:
        node.protect.capabilities = BARE
        yield node


async def _listed(node: Rig) -> list[str]:
    reply = await node.cri.Status(cri.StatusRequest())
    return [handler.name for handler in reply.runtime_handlers]


async def test_status_lists_the_usable_handlers_of_the_host(node: Rig) -> None:
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    assert [handler.name for handler in reply.runtime_handlers] == ["", "fast", "xenpod"]
    conditions = {condition.type: condition for condition in reply.status.conditions}
    assert conditions["RuntimeReady"].status and not conditions["HandlersReady"].status
    assert "handler sev: requires label:sev-snp, and" in conditions["HandlersReady"].message
    assert f"handler apart: its zones have the label {LABEL}" in conditions["HandlersReady"].message
    assert not conditions["ZoneModePreferred"].status
    assert conditions["ZoneModePreferred"].reason == "FallsBackToPV"
    assert conditions["ZoneModePreferred"].message == (
        "handler fast: mode auto gives pv zones, as this host lacks hvm (VT-x or AMD-V)"
    )
    shown = json.loads(reply.info["handlers"])
    assert shown["fast"]["mode"] == "pv" and "auto" in shown["fast"]["notice"]
    assert "label:sev-snp" in shown["sev"]["error"] and shown["sev"]["requires"] == ["label:sev-snp"]


async def test_a_pod_for_another_is_refused_and_nothing_is_made(node: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.pod(handler="sev")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    said = str(caught.value.details())
    assert "runtime handler sev: requires label:sev-snp" in said and "its zones are pvh" in said
    assert await node.pods() == [] and node.protect.zones == {} and node.network.attached == {}


async def test_arrival_and_removal_of_a_device_are_seen(node: Rig) -> None:
    assert "gpu" not in await _listed(node)
    node.protect.capabilities = WHOLE
    assert "gpu" in await _listed(node)
    pod = await node.pod(handler="gpu")
    assert node.protect.zone_requests[pod].mode == pb.ZONE_MODE_UNSPECIFIED
    node.protect.capabilities = BARE
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.pod("late", handler="gpu")
    assert "requires device:gpu0" in str(caught.value.details())


async def test_where_pvh_can_be_the_condition_is_met(node: Rig) -> None:
    node.protect.capabilities = WHOLE
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    assert {condition.type: condition.status for condition in reply.status.conditions}["ZoneModePreferred"]


async def test_a_label_is_looked_up_before_pods_and_given_to_zones(node: Rig) -> None:
    node.protect.capabilities = pb.HostCapabilities(pv=True, flask=True)
    assert "apart" not in await _listed(node), "as long as the policy lacks the label"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.pod("early", handler="apart")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "policy lacks" in str(caught.value.details())
    node.protect.seclabels = {LABEL}
    assert "apart" in await _listed(node)
    assert node.protect.zone_requests[await node.pod(handler="apart")].seclabel == LABEL
    assert node.protect.zone_requests[await node.pod("other")].seclabel == ""


async def test_the_handlers_mode_is_asked_for(node: Rig) -> None:
    node.protect.capabilities = WHOLE
    await node.cri.Status(cri.StatusRequest(verbose=True))
    modes = {
        name: node.protect.zone_requests[await node.pod(name, handler=name)].mode
        for name in ("xenpod", "fast", "sev")
    }
    assert modes == {"xenpod": pb.ZONE_MODE_UNSPECIFIED, "fast": AUTO, "sev": PVH}


async def test_without_the_default_handlers_requirements_no_ordinary_pod_runs(tmp_path: Path) -> None:
    config = replace(node_config(tmp_path), handlers={"xenpod": HandlerConfig(requires=("hvm",))})
    async with rig(tmp_path, config=config) as node:
        reply = await node.cri.Status(cri.StatusRequest())
        ready = {condition.type: condition for condition in reply.status.conditions}["RuntimeReady"]
        assert not ready.status and "requires hvm" in ready.message
        assert ready.reason == "DefaultHandlerNotReady"
        assert not reply.runtime_handlers
