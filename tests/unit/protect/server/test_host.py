"""protectd's answer about this host, and the resulting mode of zones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from daemonkit.convert import WrongKey
from daemonkit.faults import Refused
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from protect.__main__ import check_modes
from protect.config import HostConfig, NamedDevice, Profile, ProtectdConfig
from protect.host.named_devices import present
from protect.model.capacity.modes import WantedMode, choose, refuse_impossible_mode
from protect.model.toolstack import Capabilities, Mode
from protect.server.host import mode_notices
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running
from tests.support.protect.zones import failing
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

WHOLE = Capabilities(pv=True, hvm=True, hap=True, iommu=True, hypervisor_version="4.17", numa_nodes=2)
NO_HARDWARE = Capabilities()
PV_KERNEL = replace(WHOLE, kernel_modes=frozenset({Mode.PV}))
LABEL = "system_u:system_r:tenant_a_t"


@asynccontextmanager
async def serving(
    folder: Path, can: Capabilities, labels: Collection[str] = (), **config: object
) -> AsyncIterator[tuple[rpc.HostAsyncStub, rpc.ZonesAsyncStub]]:
    toolstack = MemoryToolstack()
    toolstack.can, toolstack.seclabels = can, set(labels)
    async with running(folder, toolstack, **config) as protectd:  # type: ignore[arg-type]
        add = protectd.add_services
        async with serve_unix(folder / "s", add, name="p", grace=0.1):
            async with channel(folder / "s") as link:
                yield rpc.HostStub(link), rpc.ZonesStub(link)


async def test_info_has_the_capabilities_of_the_host(tmp_path: Path) -> None:
    devices = {"null": NamedDevice("/dev/null"), "lost": NamedDevice("0000:ff:1f.7")}
    host = HostConfig(labels=("sev-snp",), devices=devices)
    async with serving(tmp_path, WHOLE, host=host) as (service, _):
        info = await service.Info(pb.InfoRequest(), timeout=60)
    assert info.capabilities == pb.HostCapabilities(
        pv=True,
        hvm=True,
        hap=True,
        iommu=True,
        hypervisor_version="4.17",
        devices=["null"],
        absent_devices=["lost"],
        labels=["sev-snp"],
        numa_nodes=2,
    )


def test_present_devices_are_listed(tmp_path: Path) -> None:
    (tmp_path / "0000:65:00.0").mkdir()
    named = {"card": "0000:65:00.0", "gone": "0000:65:00.1", "null": "/dev/null", "folder": "/dev/shm"}
    assert present(named, tmp_path) == {"card", "null"}


@pytest.mark.parametrize(
    ("wanted", "can", "mode"),
    [
        (WantedMode.AUTO, WHOLE, Mode.PVH),
        (WantedMode.AUTO, replace(WHOLE, hap=False), Mode.PV),
        (WantedMode.AUTO, NO_HARDWARE, Mode.PV),
        (WantedMode.AUTO, PV_KERNEL, Mode.PV),
        (WantedMode.PV, WHOLE, Mode.PV),
        (WantedMode.PVH, NO_HARDWARE, Mode.PVH),
    ],
)
def test_auto_is_pvh_where_the_host_can(wanted: WantedMode, can: Capabilities, mode: Mode) -> None:
    assert choose(wanted, can) is mode


@pytest.mark.parametrize(
    ("can", "lacks"),
    [
        (WHOLE, ""),
        (NO_HARDWARE, "lacks hvm (VT-x or AMD-V"),
        (replace(WHOLE, hap=False), "lacks hap (EPT or NPT"),
        (PV_KERNEL, "kernel of zones cannot boot so: it was built without CONFIG_XEN and CONFIG_PVH"),
    ],
)
def test_a_fallback_names_the_missing_feature(can: Capabilities, lacks: str) -> None:
    assert ProtectdConfig().profile("").mode is WantedMode.AUTO, "what nobody has set"
    notices = mode_notices(ProtectdConfig(), can)
    assert bool(notices) is bool(lacks) and all(lacks in notice for notice in notices)


@pytest.mark.parametrize(
    ("mode", "can", "wrong"),
    [
        (WantedMode.AUTO, WHOLE, ""),
        (WantedMode.AUTO, PV_KERNEL, ""),
        (WantedMode.PV, PV_KERNEL, ""),
        (
            WantedMode.PVH,
            PV_KERNEL,
            "its zones are pvh, and their kernel cannot boot so: it was built",
        ),
        (WantedMode.AUTO, replace(NO_HARDWARE, kernel_modes=frozenset({Mode.PVH})), "CONFIG_XEN_PV"),
        (WantedMode.AUTO, replace(WHOLE, kernel_modes=frozenset[Mode]()), "its zones are pv"),
    ],
)
def test_the_kernel_of_zones_is_checked_at_the_start(mode: WantedMode, can: Capabilities, wrong: str) -> None:
    config = ProtectdConfig(profiles={"default": Profile(mode=mode)})
    if not wrong:
        check_modes(config, can)
        return
    with pytest.raises(WrongKey) as raised:
        check_modes(config, can)
    assert raised.value.key == "profiles.default.mode" and wrong in raised.value.cause


async def test_a_kernel_of_its_own_is_not_the_toolstacks(tmp_path: Path) -> None:
    async with serving(tmp_path, PV_KERNEL) as (service, zones):
        info = await service.Info(pb.InfoRequest(), timeout=60)
        assert list(info.capabilities.kernel_lacks) == [pb.ZONE_MODE_PVH]
        assert (await zones.CreateZone(pb.CreateZoneRequest(id="a"), timeout=60)).mode == pb.ZONE_MODE_PV
        (tmp_path / "image").write_bytes(b"kernel")
        own = pb.ZoneKernel(name="mine", image_path=str(tmp_path / "image"))
        made = await zones.CreateZone(pb.CreateZoneRequest(id="b", kernel=own), timeout=60)
        assert made.mode == pb.ZONE_MODE_PVH


async def test_labels_of_the_host_are_checked(tmp_path: Path) -> None:
    async with serving(tmp_path, replace(WHOLE, flask=True), labels={LABEL}) as (service, zones):
        asked = pb.InfoRequest(seclabels=[LABEL, "system_u:system_r:other_t"])
        info = await service.Info(asked, timeout=60)
        assert info.capabilities.flask and list(info.unknown_seclabels) == ["system_u:system_r:other_t"]
        made = await zones.CreateZone(pb.CreateZoneRequest(id="a", seclabel=LABEL), timeout=60)
        assert made.seclabel == LABEL
        assert (await zones.GetZone(pb.GetZoneRequest(id="a"), timeout=60)).seclabel == LABEL
        for wrong in ("domU_t", "a:b:c d", "a:b:c\n", f"a:b:{'c' * 252}"):
            async with failing(grpc.StatusCode.INVALID_ARGUMENT) as said:
                await zones.CreateZone(pb.CreateZoneRequest(id="b", seclabel=wrong), timeout=60)
            assert "user:role:type" in said[0]
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await service.Info(pb.InfoRequest(seclabels=[LABEL] * 65), timeout=60)


async def test_without_flask_no_zone_has_a_label(tmp_path: Path) -> None:
    async with serving(tmp_path, WHOLE, labels={LABEL}) as (service, zones):
        info = await service.Info(pb.InfoRequest(seclabels=[LABEL]), timeout=60)
        assert not info.capabilities.flask and list(info.unknown_seclabels) == [LABEL]
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
            await zones.CreateZone(pb.CreateZoneRequest(id="a", seclabel=LABEL), timeout=60)
        assert "has no FLASK" in said[0] and "xsm=flask" in said[0]
        assert not (await zones.ListZones(pb.ListZonesRequest(), timeout=60)).zones


def test_a_mode_beyond_the_host_is_refused() -> None:
    for mode, can in ((Mode.PVH, NO_HARDWARE), (Mode.PV, replace(WHOLE, pv=False))):
        with pytest.raises(Refused, match=f"this host cannot run {mode.value} guests"):
            refuse_impossible_mode("create zone", "z", mode, can)
    for mode in Mode:
        refuse_impossible_mode("create zone", "z", mode, WHOLE)


async def test_the_requests_mode_goes_before_the_profiles(tmp_path: Path) -> None:
    profiles = {"default": Profile(mode=WantedMode.AUTO), "pv": Profile(mode=WantedMode.PV)}
    async with serving(tmp_path, WHOLE, profiles=profiles) as (_, zones):

        async def mode(zone: str, **asked: object) -> str:
            request = pb.CreateZoneRequest(id=zone, **asked)  # type: ignore[arg-type]
            return pb.ZoneMode.Name((await zones.CreateZone(request, timeout=60)).mode)

        assert await mode("a") == "ZONE_MODE_PVH"
        assert await mode("b", mode=pb.ZONE_MODE_PV) == "ZONE_MODE_PV"
        assert await mode("c", profile="pv") == "ZONE_MODE_PV"
        assert await mode("d", profile="pv", mode=pb.ZONE_MODE_AUTO) == "ZONE_MODE_PVH"
        async with failing(grpc.StatusCode.INVALID_ARGUMENT) as said:
            await mode("e", mode=9)
        assert "mode 9" in said[0]


async def test_auto_without_the_hardware_is_said(tmp_path: Path) -> None:
    profiles = {"default": Profile(mode=WantedMode.PV), "some": Profile()}
    async with serving(tmp_path, NO_HARDWARE, profiles=profiles) as (service, zones):
        info = await service.Info(pb.InfoRequest(), timeout=60)
        assert [notice for notice in info.notices if "mode auto" in notice] == [
            "profile some: mode auto gives pv zones, as this host lacks hvm (VT-x or AMD-V, which the"
            " firmware may have to enable)"
        ]
        modes = {bounds.name: pb.ZoneMode.Name(bounds.mode) for bounds in info.profile_bounds}
        assert modes == {"default": "ZONE_MODE_PV", "some": "ZONE_MODE_AUTO"}
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
            await zones.CreateZone(pb.CreateZoneRequest(id="z", mode=pb.ZONE_MODE_PVH), timeout=60)
        assert "this host cannot run pvh guests" in said[0]
        assert not (await zones.ListZones(pb.ListZonesRequest(), timeout=60)).zones
