"""KernelCache of single domains: found, unpacked once, joined with the zone's own parts, and let go of."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Invalid, Missing
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainKernel
from protect.toolstack.libxl import kernel as unpacking
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.config import domain_config
from protect.toolstack.libxl.kernels import KernelCache
from tests.unit.protect.toolstack.libxl.test_boot import ELF, SPEC, bz_image, filtered, gzipped

OWN = Boot(Path("/k"), Path("/i"), 5)


@pytest.fixture
def kernels(tmp_path: Path) -> KernelCache:
    (tmp_path / "initramfs.cpio").write_bytes(b"0707-own")
    made = KernelCache(OWN, tmp_path, tmp_path / "cache")
    made.prepare()
    return made


def _image(folder: Path, name: str, more: bytes = b"") -> DomainKernel:
    path = folder / name
    path.write_bytes(bz_image(gzipped(ELF + more)))
    return DomainKernel(name, path)


async def test_zone_without_a_kernel_image_boots_the_toolstacks_own(kernels: KernelCache) -> None:
    async with kernels.unpacked(None) as boot:
        assert boot is OWN


async def test_a_kernel_is_unpacked_once_and_its_initramfs_joined(
    kernels: KernelCache, tmp_path: Path
) -> None:
    image = _image(tmp_path, "one").image
    (tmp_path / "early").write_bytes(b"\x1f\x8bearly")
    both = DomainKernel("one", image, tmp_path / "early")
    async with kernels.unpacked(both) as boot:
        assert boot.kernel.read_bytes() == ELF
        assert boot.initramfs.read_bytes() == b"\x1f\x8bearly\0" + b"0707-own"
        assert boot.minimum_bytes > len(ELF)
    async with kernels.unpacked(both) as again:
        assert again == boot
    async with kernels.unpacked(DomainKernel("alone", image)) as alone:
        assert alone.initramfs == tmp_path / "initramfs.cpio"
    image.write_bytes(bz_image(gzipped(ELF + b"newer")))
    async with kernels.unpacked(both) as newer:
        assert newer.kernel.read_bytes() == ELF + b"newer"


async def test_kept_kernels_are_bounded_and_include_used_kernels(
    kernels: KernelCache, tmp_path: Path
) -> None:
    async with kernels.unpacked(_image(tmp_path, "used")) as used:
        made = []
        for number in range(6):
            async with kernels.unpacked(_image(tmp_path, f"k{number}", bytes(number + 1))) as boot:
                made.append(boot.kernel)
        assert [path.exists() for path in (used.kernel, *made)] == [True, *[False] * 2, *[True] * 4]
    async with kernels.unpacked(_image(tmp_path, "last", b"last")):
        assert not used.kernel.exists()
    kernels.prepare()
    assert not (tmp_path / "cache").exists()


async def test_unbootable_kernel_is_refused(kernels: KernelCache, tmp_path: Path) -> None:
    broken = DomainKernel("broken", tmp_path / "broken")
    broken.image.write_bytes(b"nonsense")
    for wanted in (broken, DomainKernel("empty", Path("/dev/null"))):
        with pytest.raises(Invalid):
            async with kernels.unpacked(wanted):
                raise AssertionError
    with pytest.raises(Missing):
        async with kernels.unpacked(DomainKernel("gone", tmp_path / "gone")):
            raise AssertionError
    with pytest.raises(Missing, match=f"read zone kernel half: there is no {tmp_path / 'none'}"):
        async with kernels.unpacked(replace(broken, name="half", initramfs=tmp_path / "none")):
            raise AssertionError
    with pytest.raises(ToolstackError, match="read zone kernel below: .*Not a directory"):
        async with kernels.unpacked(DomainKernel("below", broken.image / "below")):
            raise AssertionError
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "initramfs.cpio").unlink()
    with pytest.raises(Missing, match="make -C zone initramfs"):
        async with kernels.unpacked(broken):
            raise AssertionError


@pytest.mark.parametrize("program", ["lz4", "zstd"])
async def test_a_bomb_ends_at_the_limit(
    kernels: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    filtered(program, "--version")
    monkeypatch.setattr(unpacking, "_LARGEST_BYTES", 1 << 20)
    flags = ["-l", "-c"] if program == "lz4" else ["-c"]
    bomb = subprocess.run([program, *flags], input=bytes(64 << 20), capture_output=True, check=True).stdout
    wanted = DomainKernel("bomb", tmp_path / "bomb")
    wanted.image.write_bytes(bz_image(bomb + bytes(4)))
    with pytest.raises(Invalid, match="unpack zone kernel"):
        async with kernels.unpacked(wanted):
            raise AssertionError


def test_addons_are_told_to_the_agent() -> None:
    kernel = DomainKernel("k", Path("/image"), addons=Path("/addons"))
    told = domain_config(replace(SPEC, kernel=kernel), OWN, "quiet")["b_info"]
    assert isinstance(told, dict) and "XENPOD_ADDONS=xvdzz" in told["cmdline"]
    plain = domain_config(SPEC, OWN, "quiet")["b_info"]
    assert isinstance(plain, dict) and "XENPOD_ADDONS" not in plain["cmdline"]
