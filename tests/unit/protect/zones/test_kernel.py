"""Zones with kernels of their own: requests, files writable by others, records and views."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from daemonkit.faults import Fault, Invalid, Missing, Refused
from protect.assembly import Assembly
from protect.model.toolstack import DomainKernel
from protect.model.zone import Zone, ZoneState
from protect.server import translate, zone_requests
from protect.state import records
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec
from xenpod_proto.protect.v1 import protect_pb2 as pb


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path / "protectd", toolstack) as made:
        yield made


@pytest.fixture
def kernel(tmp_path: Path) -> DomainKernel:
    folder = tmp_path / "kernel"
    folder.mkdir(mode=0o700)
    for name in ("image", "addons"):
        (folder / name).write_bytes(b"x")
    return DomainKernel("example/k:1", folder / "image", addons=folder / "addons")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root owns")


@needs_root
async def test_the_toolstack_gets_the_kernel(
    protectd: Assembly, toolstack: MemoryToolstack, kernel: DomainKernel
) -> None:
    zone = await protectd.launcher.launch(replace(zone_spec(), kernel=kernel))
    (domain,) = toolstack.domains.values()
    assert domain.spec.kernel == kernel
    assert records.zone(records.of_zone(zone)) == zone
    assert translate.zone(zone, connected=True, toolstack="x").kernel == "example/k:1"


def test_zones_of_before_have_none() -> None:
    zone = Zone(zone_spec(), uuid4(), ZoneState.RUNNING, 7)
    body = records.of_zone(zone)
    del body["kernel"]
    assert records.zone(body) == zone


def _symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/boot/vmlinuz")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILED: list[tuple[Callable[[Path], object], type[Fault], str]] = [
    (lambda path: path.unlink(), Missing, "No such file"),
    (_symlink, Refused, "not a regular file"),
    (_directory, Refused, "not a regular file"),
    (lambda path: path.chmod(0o620), Refused, "others than root may write it"),
    (lambda path: os.chown(path, 1000, 0), Refused, "others than root may write it"),
    (lambda path: path.parent.chmod(0o777), Refused, "others than root may write /"),
    (lambda path: os.chown(path.parent, 1000, 0), Refused, "others than root may write /"),
]


@needs_root
@pytest.mark.parametrize("file", ["image", "addons"])
@pytest.mark.parametrize("number", range(len(SPOILED)))
async def test_files_unread_by_the_host_are_refused(
    protectd: Assembly, toolstack: MemoryToolstack, kernel: DomainKernel, number: int, file: str
) -> None:
    spoil, kind, cause = SPOILED[number]
    spoil(kernel.image.parent / file)
    with pytest.raises(kind, match=cause):
        await protectd.launcher.launch(replace(zone_spec(), kernel=kernel))
    assert not toolstack.domains and not protectd.registry.zones


@needs_root
async def test_a_link_as_folder_is_refused(protectd: Assembly, kernel: DomainKernel, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kernel.image.parent)
    moved = replace(kernel, image=tmp_path / "link" / "image")
    with pytest.raises(Refused, match="symbolic link"):
        await protectd.launcher.launch(replace(zone_spec(), kernel=moved))


def test_the_kernel_of_a_request_is_read() -> None:
    def asked(**kernel: str) -> DomainKernel | None:
        request = pb.CreateZoneRequest(id="z1", kernel=pb.ZoneKernel(**kernel))
        return zone_requests.zone_request(request).kernel

    assert zone_requests.zone_request(pb.CreateZoneRequest(id="z1")).kernel is None
    assert asked(name="k", image_path="/k") == DomainKernel("k", Path("/k"))
    full = asked(image_path="/k", initramfs_path="/i", addons_path="/a")
    assert full == DomainKernel("", Path("/k"), Path("/i"), Path("/a"))
    for wrong in (
        {"name": "k"},
        {"image_path": "k"},
        {"image_path": "/../k"},
        {"image_path": "/k", "addons_path": "a\0"},
        {"image_path": "/k", "initramfs_path": "/i" * 3000},
        {"image_path": "/k", "name": "\x1b"},
    ):
        with pytest.raises(Invalid):
            asked(**wrong)
