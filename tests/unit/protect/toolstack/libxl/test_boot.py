"""The boot of zones: kernels found and unpacked, command lines, domains in libxl's words."""

from __future__ import annotations

import bz2
import lzma
import os
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Fault, Invalid, Missing
from protect.model.toolstack import DomainSpec, Mode
from protect.toolstack.console import read_tail
from protect.toolstack.libxl import boot
from protect.toolstack.libxl.config import NO_SCRIPT, domain_config, map_bytes
from protect.toolstack.libxl.guest_logs import GuestLogs
from protect.toolstack.libxl.kernel import kernel_version, unpack, unpacked_kernel
from protect.toolstack.libxl.settings import LibxlSettings

ELF = b"\x7fELF" + bytes(range(256)) * 64
LENGTH = struct.pack("<I", len(ELF))
VERSION = b"6.1.0-9-cloud-amd64 (debian) #1\0"


def bz_image(payload: bytes) -> bytes:
    """The used part of a bzImage's setup header (boot.rst), a setup sector, the payload."""
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x300 - 512)
    head[0x300 : 0x300 + len(VERSION)] = VERSION
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload


def gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def filtered(*command: str) -> bytes:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, input=ELF, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kind", ["xz", "lzma", "gzip", "bzip2", "lz4", "zstd"])
def test_kernels_of_every_compression_are_unpacked(kind: str) -> None:
    packed = {
        "xz": lambda: lzma.compress(ELF, check=lzma.CHECK_CRC32) + LENGTH,
        "lzma": lambda: lzma.compress(ELF, lzma.FORMAT_ALONE) + LENGTH,
        "gzip": lambda: gzipped(ELF),
        "bzip2": lambda: bz2.compress(ELF) + LENGTH,
        "lz4": lambda: filtered("lz4", "-l", "-c") + LENGTH,
        "zstd": lambda: filtered("zstd", "-c") + LENGTH,
    }[kind]()
    assert unpack(bz_image(packed), "k") == ELF


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "neither"),
        (b"x" * 2000, "neither"),
        (bz_image(b"")[:1040], "outside"),
        (bz_image(b"nonsense"), "unknown compression 6e6f6e"),
        (bz_image(lzma.compress(b"no kernel") + LENGTH), "no ELF"),
        (bz_image(gzipped(ELF)[:100]), "incomplete"),
    ],
)
def test_invalid_kernel_is_refused(data: bytes, cause: str) -> None:
    with pytest.raises(Invalid, match=cause):
        unpack(data, "k")


@given(st.binary(max_size=300))
def test_nothing_in_a_payload_is_trusted(payload: bytes) -> None:
    for magic in (b"\xfd7zXZ\0", b"\x1f\x8b\x08", b"BZh", b"\x5d\0\0"):
        with pytest.raises(Fault):
            unpack(bz_image(magic + payload), "k")


def test_a_kernel_is_unpacked_once(tmp_path: Path) -> None:
    image, cache = tmp_path / "vmlinuz", tmp_path / "cache"
    image.write_bytes(bz_image(gzipped(ELF)))
    first = unpacked_kernel(image, cache)
    assert first.read_bytes() == ELF
    written = first.stat().st_mtime_ns
    assert unpacked_kernel(image, cache) == first
    assert first.stat().st_mtime_ns == written
    image.write_bytes(bz_image(gzipped(ELF + b"newer")))
    second = unpacked_kernel(image, cache)
    assert [second] == list(cache.iterdir())
    assert unpacked_kernel(second, cache) == second
    with pytest.raises(Missing):
        unpacked_kernel(tmp_path / "nothing", cache)


def test_a_too_large_kernel_is_not_read(tmp_path: Path) -> None:
    image = tmp_path / "vmlinuz"
    image.write_bytes(ELF)
    assert unpacked_kernel(image, tmp_path / "cache") == image
    os.truncate(image, 256 << 20)
    assert unpacked_kernel(image, tmp_path / "cache") == image
    os.truncate(image, (256 << 20) + 1)
    with pytest.raises(Invalid, match=f"{(256 << 20) + 1} bytes are not 1 to {256 << 20}"):
        unpacked_kernel(image, tmp_path / "cache")
    image.write_bytes(b"")
    with pytest.raises(Invalid, match="0 bytes"):
        unpacked_kernel(image, tmp_path / "cache")


def test_versions_of_kernels_are_read(tmp_path: Path) -> None:
    image = tmp_path / "vmlinuz"
    image.write_bytes(bz_image(gzipped(ELF)))
    assert kernel_version(image) == "6.1.0-9-cloud-amd64"
    image.write_bytes(ELF)
    with pytest.raises(Invalid, match=r"set libxl\.initramfs"):
        kernel_version(image)


def test_the_newest_kernel_with_an_initramfs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "_BOOT", tmp_path)
    with pytest.raises(Missing, match="make -C zone initramfs"):
        boot.find_boot(LibxlSettings(), tmp_path, tmp_path / "cache")
    (tmp_path / "initramfs-6.1.0-9-cloud-amd64.cpio").write_bytes(bytes(1000))
    (tmp_path / "initramfs-6.1.0-10-cloud-amd64.cpio").write_bytes(bytes(1000))
    (tmp_path / "vmlinuz-6.1.0-9-cloud-amd64").write_bytes(bz_image(gzipped(ELF)))
    found = boot.find_boot(LibxlSettings(), tmp_path, tmp_path / "cache")
    assert found.initramfs.name == "initramfs-6.1.0-9-cloud-amd64.cpio"
    assert found.kernel.read_bytes() == ELF
    assert found.minimum_bytes == len(ELF) + 2000 + (32 << 20)
    with pytest.raises(Missing, match="find initramfs"):
        boot.find_boot(LibxlSettings(initramfs=tmp_path / "none"), tmp_path, tmp_path / "cache")


SPEC = DomainSpec(UUID(int=5), "z", 64 << 20, 2, Mode.PVH, 2, {"XENPOD_ZONE": "z1"})


def test_a_domain_in_libxls_words() -> None:
    files = boot.Boot(Path("/k"), Path("/i"), 0)
    config = domain_config(SPEC, files, "quiet")
    assert config["c_info"] == {"type": "pvh", "name": "z", "uuid": str(SPEC.uuid)}
    assert config["b_info"] == {
        "type.pvh": {},
        "max_vcpus": 2,
        "avail_vcpus": [0, 1],
        "max_memkb": 65536,
        "target_memkb": 65536,
        "kernel": "/k",
        "ramdisk": "/i",
        "cmdline": "console=hvc0 panic=1 xen_blkfront.max_queues=1 "
        "xen_blkfront.max_indirect_segments=11 xen_blkfront.feature_persistent=0 quiet "
        "XENPOD_CHANNEL=vchan XENPOD_CLOCK=own XENPOD_SEED=xenstore "
        "XENPOD_ZONE=z1 XENPOD_CPUS=hotplug",
        "claim_mode": True,
    }
    assert config["nics"] == [{"devid": n, "nictype": "vif", "script": NO_SCRIPT} for n in range(2)]


@pytest.mark.parametrize(
    "environment",
    [
        {"A": "with blank"},
        {"A": 'quo"te'},
        {"a.b": "x"},
        {"": "x"},
        {"A": "\n"},
        {f"A{n}": "x" * 200 for n in range(6)},
    ],
)
def test_environment_unfit_for_a_command_line_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        domain_config(replace(SPEC, environment=environment), boot.Boot(Path("/k"), Path("/i"), 0), "")


def test_command_line_may_have_1023_characters() -> None:
    """1024 bytes with their NUL (MAX_GUEST_CMDLINE of Xen's xen.h)."""
    longest = {**{f"B{n}": "x" * 251 for n in range(3)}, "A": ""}
    missing = 1023 - len(boot.command_line("", longest))
    assert 0 < missing <= 255
    assert len(boot.command_line("", {**longest, "A": "x" * missing})) == 1023
    with pytest.raises(Invalid, match="1024 characters, 1023 fit"):
        boot.command_line("", {**longest, "A": "x" * (missing + 1)})


def test_the_newest_kernel_with_its_plain_flavour_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "_BOOT", tmp_path)
    for version in ("6.1.0-9-cloud-amd64", "6.1.0-9-amd64", "6.1.0-8-amd64", "5.10.0-99-amd64"):
        (tmp_path / f"initramfs-{version}.cpio").write_bytes(bytes(1000))
        (tmp_path / f"vmlinuz-{version}").write_bytes(version.encode())
    assert boot._newest(tmp_path) == tmp_path / "vmlinuz-6.1.0-9-amd64"


def test_shared_directory_is_announced_on_the_command_line() -> None:
    files = boot.Boot(Path("/k"), Path("/i"), 0)
    assert "XENPOD_SHARED" not in str(domain_config(SPEC, files, ""))
    assert "XENPOD_SHARED=vchan" in str(domain_config(replace(SPEC, shared=Path("/s")), files, ""))


async def test_logs_of_guests_are_read(tmp_path: Path) -> None:
    consoles = tmp_path / "console"
    consoles.mkdir()
    logs = GuestLogs(consoles)
    assert logs.notices() == ()
    assert await read_tail(logs.console("z"), 10) == b""
    (consoles / "guest-z.log").write_bytes(b"0123456789abcdef")
    assert await read_tail(logs.console("z"), 6) == b"abcdef"
    assert await read_tail(logs.console("z"), 600) == b"0123456789abcdef"
    logs.trim(["z", "unknown"])
    assert await read_tail(logs.console("z"), 600) == b"0123456789abcdef"
    path = consoles / "guest-z.log"
    with path.open("ab") as log:
        log.write(bytes(2 << 20) + b"newest")
        log.flush()
        logs.trim(["z"])
        log.write(b"!")
    assert path.stat().st_size == (256 << 10) + 1
    assert path.read_bytes().endswith(b"newest!")
    logs.forget("z")
    logs.forget("z")
    assert not [*consoles.iterdir()]
    assert "--log=guest" in GuestLogs(tmp_path / "none").notices()[0]


@pytest.mark.parametrize(
    ("mode", "available", "said"), [(Mode.PV, [0, 1], ""), (Mode.PVH, [0, 1, 2, 3], " maxcpus=2")]
)
def test_a_growing_domain_has_a_larger_maximum(mode: Mode, available: list[int], said: str) -> None:
    """PVH: all vCPUs are in the tables that its kernel reads once. PV: the domain needs no bound."""
    most = replace(SPEC, mode=mode, vcpus_max=4, memory_max_bytes=256 << 20)
    made = domain_config(most, boot.Boot(Path("/k"), Path("/i"), 0), "quiet", {"poolid": 3})
    info, core = made["b_info"], made["c_info"]
    assert isinstance(info, dict) and isinstance(core, dict)
    assert (info["max_vcpus"], info["avail_vcpus"]) == (4, available)
    assert (info["max_memkb"], info["target_memkb"]) == (256 << 10, 64 << 10)
    assert f"quiet{said} XENPOD_CHANNEL" in info["cmdline"] and core["poolid"] == 3
    assert map_bytes(most) == 3 << 20 and not map_bytes(SPEC)


def test_hot_plug_adds_nothing_to_the_built_domain() -> None:
    largest = replace(SPEC, hotplug_max_bytes=4 << 30)
    made = domain_config(largest, boot.Boot(Path("/k"), Path("/i"), 0), "quiet")
    info, core = made["b_info"], made["c_info"]
    assert isinstance(info, dict) and isinstance(core, dict)
    assert info["max_memkb"] == info["target_memkb"] == 64 << 10
    assert "quiet memhp_default_state=online XENPOD_CHANNEL" in info["cmdline"]
    assert core["xsdata"]["xenpod-memory-max"] == str(4 << 20)
    assert map_bytes(largest) == 0
