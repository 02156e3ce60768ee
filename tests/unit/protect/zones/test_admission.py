"""Admission of zones: the spec for a request, and room on the host for one more zone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.config import Bytes
from daemonkit.faults import Exhausted, Exists, Fault, Invalid, Refused
from protect.assembly import Assembly
from protect.config import Memory, Profile, ProtectdConfig, ZoneLimits
from protect.model.capacity.host_resources import ZoneCapacity
from protect.model.capacity.modes import WantedMode
from protect.model.capacity.reservation import Reservation
from protect.model.domain.shares import DiskRates
from protect.model.toolstack import Capabilities, DomainKernel, Mode
from protect.model.zone import ZoneSpec
from protect.zones import admission
from protect.zones.admission import Resources, ZoneRequest
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MIB, running, zone_spec

POD = "0b6b7f0e-33a5-4a6f-8f6e-2f4be1a0d6aa"
PROFILE = Profile(
    memory=Bytes(256 * MIB),
    memory_min=Bytes(64 * MIB),
    memory_max=Bytes(1024 * MIB),
    vcpus=1,
    vcpus_max=4,
    scratch=Bytes(32 * MIB),
    scratch_max=Bytes(64 * MIB),
)
CONFIG = ProtectdConfig(profiles={"default": PROFILE})
ANY = Resources()


def memory(mebibytes: int, vcpus: int = 0) -> Resources:
    return Resources(mebibytes * MIB, vcpus)


def reservation(name: str, mebibytes: int, vcpus: int = 0, *devices: str) -> Reservation:
    return Reservation(name, mebibytes * MIB, vcpus, (POD,), 0, devices=devices)


HALF = reservation("a", 512, 2)


def decided(
    *reservations: Reservation,
    config: ProtectdConfig = CONFIG,
    host: Capabilities | None = None,
    **fields: object,
) -> ZoneSpec:
    wanted = ZoneRequest("z1", pod_uid=POD, **fields)  # type: ignore[arg-type]
    return admission.zone_spec(config, host or Capabilities(), reservations, wanted)


@pytest.mark.parametrize(
    ("reservations", "wanted", "size"),
    [
        ((), ANY, (256, 1)),
        ((), memory(64), (64, 1)),
        ((), memory(1024, 4), (1024, 4)),
        ((HALF,), ANY, (512, 2)),
        ((HALF,), memory(512, 2), (512, 2)),
        ((HALF, reservation("b", 128, 1)), ANY, (640, 3)),
        ((reservation("a", 512),), memory(0, 3), (512, 3)),
        ((reservation("a", 0, 3, "fast"),), memory(128, 4), (128, 4)),
    ],
)
def test_the_size_at_launch_follows_request_reservation_and_profile(
    reservations: Sequence[Reservation], wanted: Resources, size: tuple[int, int]
) -> None:
    spec = decided(*reservations, resources=wanted)
    assert (spec.memory_bytes // MIB, spec.vcpus) == size
    assert spec.reservations == tuple(one.id for one in reservations)


def test_reservations_of_other_pods_are_left_alone() -> None:
    assert decided(replace(HALF, pod_uids=("other",))).reservations == ()
    nameless = replace(HALF, pod_uids=("",))
    assert decided(nameless).reservations == ()
    without_pod = admission.zone_spec(CONFIG, Capabilities(), [nameless], ZoneRequest("z1"))
    assert without_pod.reservations == ()


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, (256, 1)),
        ({"most": memory(512, 3)}, (512, 3)),
        ({"most": memory(128)}, (256, 1)),
        ({"headroom": memory(100, 2)}, (356, 3)),
        ({"headroom": Resources(1 << 60, 1 << 20)}, (1024, 4)),
        ({"most": memory(512), "headroom": memory(9, 9)}, (512, 4)),
        ({"most": memory(512, 3), "bound": memory(300, 2)}, (300, 2)),
        ({"headroom": memory(100, 2), "bound": memory(128)}, (256, 3)),
        ({"bound": memory(4096, 99), "most": memory(1024, 4)}, (1024, 4)),
    ],
)
def test_maxima_stay_within_profile_and_handler(fields: dict[str, object], most: tuple[int, int]) -> None:
    spec = decided(**fields)  # type: ignore[arg-type]
    assert (spec.memory_max_bytes // MIB, spec.vcpus_max) == most


@pytest.mark.parametrize(
    ("reservations", "fields", "most"),
    [
        ((), {}, 1024),
        ((), {"headroom": memory(100)}, 1024),
        ((), {"bound": memory(300)}, 300),
        ((), {"most": memory(512)}, 512),
        ((HALF,), {}, 512),
        ((HALF,), {"headroom": memory(100)}, 612),
    ],
)
def test_memory_is_hot_plugged_up_to_the_bound_unless_reserved(
    reservations: Sequence[Reservation], fields: dict[str, object], most: int
) -> None:
    wanted = ZoneRequest("z1", pod_uid=POD, **fields)  # type: ignore[arg-type]
    spec = admission.zone_spec(CONFIG, Capabilities(), reservations, wanted, hotplug=True)
    assert spec.most_memory // MIB == most
    assert spec.built_memory == spec.memory_bytes
    other = admission.zone_spec(CONFIG, Capabilities(), reservations, wanted)
    assert other.built_memory == other.most_memory == other.policy_limit == spec.policy_limit


@pytest.mark.parametrize(("wanted", "least"), [(0, 256), (100, 100), (512, 256)])
def test_minimum_of_a_dynamic_policy_is_at_most_the_size(wanted: int, least: int) -> None:
    assert decided(memory_min_bytes=wanted * MIB).memory_min_bytes == least * MIB


@pytest.mark.parametrize(
    ("wanted", "size"), [(None, 32 * MIB), (0, 0), (16 * MIB, 16 * MIB), (17 * MIB - 1, 17 * MIB)]
)
def test_scratch_disks_have_whole_mebibytes(wanted: int | None, size: int) -> None:
    assert decided(scratch_bytes=wanted).scratch_bytes == size


REFUSED: dict[str, tuple[Sequence[Reservation], dict[str, object], type[Fault], str]] = {
    "little memory": ((), {"resources": memory(63)}, Invalid, "63 MiB of memory are not between 64 and 1024"),
    "much memory": ((), {"resources": memory(1025)}, Invalid, "1025 MiB of memory are not between"),
    "many vCPUs": ((), {"resources": memory(0, 5)}, Invalid, "5 vCPUs are more than 4"),
    "a large maximum": (
        (),
        {"most": memory(1025, 1)},
        Invalid,
        "a maximum of 1025 MiB and 1 vCPUs is beyond 1024 MiB and 4",
    ),
    "a maximum of many vCPUs": ((), {"most": memory(0, 5)}, Invalid, "0 MiB and 5 vCPUs is beyond"),
    "a small scratch disk": ((), {"scratch_bytes": MIB}, Invalid, "of 1 MiB is neither 0 nor 16 to 64 MiB"),
    "a large scratch disk": ((), {"scratch_bytes": 65 * MIB}, Invalid, "of 65 MiB is neither"),
    "more memory than reserved": (
        (HALF,),
        {"resources": memory(513)},
        Refused,
        r"asks for 513 MiB of memory, reserved for its pod are 512 MiB and 2 vCPUs \(a\)",
    ),
    "more vCPUs than reserved": ((HALF,), {"resources": memory(0, 3)}, Refused, "it asks for 3 vCPUs"),
    "more reserved than the handler allows": (
        (HALF,),
        {"bound": memory(511)},
        Refused,
        r"reserved for its pod are 512 MiB of memory \(a\), its runtime handler allows at most 511 MiB",
    ),
    "more vCPUs reserved than the handler allows": (
        (HALF,),
        {"bound": memory(0, 1)},
        Refused,
        r"are 2 vCPUs \(a\), its runtime handler allows at most 1",
    ),
    "many devices": (
        (reservation("a", 0, 0, "fast"),),
        {"device_names": tuple(f"d{number}" for number in range(32))},
        Invalid,
        "33 devices are more than 32",
    ),
    "rates of disks": ((), {"disk_rates": DiskRates(1)}, Refused, "its disks are to have rates"),
    "a label": ((), {"seclabel": "u:r:t"}, Refused, "has no FLASK"),
    "a mode": ((), {"mode": WantedMode.PVH}, Refused, "this host cannot run pvh guests"),
    "a profile": ((), {"profile": "none"}, Invalid, "there are: default"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_request_beyond_a_limit_is_refused(case: str) -> None:
    reservations, fields, kind, cause = REFUSED[case]
    with pytest.raises(kind, match=cause):
        decided(*reservations, **fields)  # type: ignore[arg-type]


def test_zones_without_a_reservation_can_be_refused() -> None:
    config = replace(CONFIG, memory=Memory(reservations_only=True))
    assert decided(HALF, config=config).reservations == ("a",)
    for reservations in ((), (reservation("a", 0, 0, "fast"),)):
        with pytest.raises(Refused, match=r"memory.reservations_only of protectd.toml is set"):
            decided(*reservations, config=config)


def test_devices_of_request_and_reservations_are_named_once() -> None:
    spec = decided(reservation("a", 0, 0, "fast", "slow"), device_names=("gpu", "fast", "gpu"))
    assert spec.device_names == ("gpu", "fast", "slow")


def test_disk_rates_stay_within_the_configuration() -> None:
    config = replace(CONFIG, limits=ZoneLimits(disk_read_rate=Bytes(5)))
    able = Capabilities(disk_rates=True)
    assert decided(config=config, host=able, disk_rates=DiskRates(9, 9)).disk_rates == DiskRates(5, 9)
    assert decided(config=config, host=able).disk_rates == DiskRates(5)
    assert not decided(config=config).disk_rates


def test_automatic_mode_follows_the_host_and_the_kernel() -> None:
    able = Capabilities(hvm=True, hap=True, kernel_modes=frozenset({Mode.PV}))
    assert decided().mode is Mode.PV
    assert decided(host=able).mode is Mode.PV
    assert decided(host=able, kernel=DomainKernel("k", Path("/k"))).mode is Mode.PVH
    assert decided(host=able, mode=WantedMode.PVH).mode is Mode.PVH


# -- room on the host


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack) as protectd:
        yield protectd


async def test_an_id_is_taken_once(protectd: Assembly) -> None:
    await protectd.admission.admit(zone_spec())
    with pytest.raises(Exists):
        await protectd.admission.admit(zone_spec())


async def test_zone_beyond_the_memory_leaves_no_record(protectd: Assembly) -> None:
    with pytest.raises(Exhausted, match="needs 8192 MiB, free are 4096 MiB of 4096 MiB"):
        await protectd.admission.admit(zone_spec(memory=8192 * MIB))
    saved = protectd.registry.store.load()
    assert not (
        protectd.registry.zones or protectd.ledger.reserved_bytes or saved.zones or saved.zone_intents
    )


async def test_scratch_disk_is_given_back_if_memory_is_short(protectd: Assembly) -> None:
    spec = replace(zone_spec(memory=8192 * MIB), scratch_bytes=16 * MIB)
    with pytest.raises(Exhausted, match="needs 8192 MiB"):
        await protectd.admission.admit(spec)
    assert protectd.ports.scratch.capacity().promised_bytes == 0


async def test_closed_daemon_admits_no_zone(protectd: Assembly) -> None:
    protectd.gate.closed = "the host shuts down"
    with pytest.raises(Refused, match="the host shuts down"):
        await protectd.admission.admit(zone_spec())


async def test_the_number_of_zones_is_limited(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, ZoneLimits(zones=1)) as protectd:
        await protectd.admission.admit(zone_spec("a"))
        with pytest.raises(Exhausted, match=r"there are 1 zones, as many as limits.zones"):
            await protectd.admission.admit(zone_spec("b"))


async def test_zones_under_construction_take_room_of_the_hypervisor(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.zone_capacity = ZoneCapacity(1, "the table of maps")
    await protectd.admission.admit(zone_spec("a"))
    with pytest.raises(Exhausted, match=r"there are 1 domains, as many as .* room for: the table of maps"):
        await protectd.admission.admit(zone_spec("b"))
