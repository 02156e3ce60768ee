"""Honest images with very many entries or zeros: pulled, in little memory."""

from __future__ import annotations

import gzip
import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from tests.support.images.image_manager import running
from tests.support.images.image_weigher import weigh
from tests.support.images.images import OCI, Blob, build, digest, write_layout

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
FILES = 410_000
MIB = 1 << 20


def _modules() -> Iterator[bytes]:
    """A tree as node_modules are: small files in many directories; the times differ."""
    chance = random.Random(1)
    blank = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
    fixed = sum(blank) - sum(blank[136:148]) - sum(blank[124:136]) - sum(blank[148:156]) + 8 * 0x20
    fixed -= blank[156]
    directory = b""
    for number in range(FILES):
        files: list[tuple[bytes, bytes, int]] = []
        if number % 20 == 0:
            directory = b"usr/lib/node_modules/package-%d/lib/module-%d/" % (number // 400, number // 20)
            files.append((directory, b"5", 0))
        files.append((directory + b"source-file-%d.js" % chance.getrandbits(20), b"0", number % 3 * 100))
        for name, kind, size in files:
            numbers = b"%011o\0%011o\0" % (size, 1_600_000_000 + chance.getrandbits(24))
            checksum = b"%06o\0 " % (fixed + sum(name) + sum(numbers) + kind[0])
            header = name.ljust(100, b"\0") + blank[100:124] + numbers + checksum + kind + blank[157:]
            yield header + (name * 9)[:size].ljust(-(-size // 512) * 512, b"\0")
    yield bytes(1024)


@pytest.mark.slow
def test_four_hundred_thousand_files(tmp_path: Path) -> None:
    """More entries than an earlier limit; a pull once took 490 MiB, and kept 280."""
    tar = b"".join(_modules())
    blob = Blob(gzip.compress(tar, 1, mtime=0), digest(tar), f"{OCI}layer.v1.tar+gzip")
    layout = write_layout(tmp_path / "layout", build([blob]))
    grown = weigh(tmp_path / "state", layout)
    assert grown["peak"] < 200 * MIB
    assert grown["left"] < 60 * MIB


async def test_a_gigabyte_of_zeros(tmp_path: Path) -> None:
    """gzip leaves a thousandth, as of a disk image or an unused swap file."""
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 30
    tar = info.tobuf() + bytes(info.size + 1024)
    blob = Blob(gzip.compress(tar, 1, mtime=0), digest(tar), f"{OCI}layer.v1.tar+gzip")
    assert len(blob.data) * 200 < info.size
    layout = write_layout(tmp_path / "layout", build([blob]))
    async with running(ImageSettings(tmp_path / "state")) as manager:
        ((image, _),) = await manager.import_layout(layout, None)
        assert image.size < 16 * MIB
