"""Measures pulls on each side, and the space of the images on the disk.

The images have this machine's own programs and libraries, and compress like real images.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import random
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from isal import igzip

from tests.bench.measure import Samples
from tests.bench.memory import Peak
from tests.bench.sides import Side
from tools.localnode import images
from tools.localnode.images import digest

MIB = 1 << 20
FIRST = "pull"
SHARING = "pull with 7 of 8 layers here"
REBASED = "pull with all but the lowest here"
SMALL = "20 small images at once"
PULLS = (FIRST, SHARING, REBASED, SMALL)
_SOURCES = ("/usr/lib", "/usr/share", "/usr/bin")
_LAYERS = 8
_CROWD = 20
_LARGEST = 16 * MIB
_MOST_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Store:
    """Bytes on the disk for the first two images, and the runtime's peak of resident memory."""

    disk: int
    peak: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the first image, in bytes."""

    packed: int
    unpacked: int


def push(address: str, host: str, mib: int) -> tuple[Sizes, list[str], list[str]]:
    """Push large images of about ``mib`` unpacked, and small images.

    The second large image has another topmost layer than the first, the third another lowest layer.
    """
    files = _files()
    tars = (_layer(files, number, mib * MIB // _LAYERS) for number in range(_LAYERS + 2))
    packed, ids, sizes = [], [], []
    for tar in tars:
        packed.append(igzip.compress(tar, 2))
        ids.append(digest(tar))
        sizes.append(len(tar))
    large = []
    middle = range(1, _LAYERS - 1)
    for name, low, top in (
        ("large", 0, _LAYERS - 1),
        ("other", 0, _LAYERS),
        ("rebased", _LAYERS + 1, _LAYERS - 1),
    ):
        chosen = [low, *middle, top]
        images.push_packed(
            address, f"bench/{name}:1", [packed[n] for n in chosen], [ids[n] for n in chosen], {}
        )
        large.append(f"{host}/bench/{name}:1")
    small = []
    for number in range(_CROWD):
        tar = _layer(files, 100 + number, MIB)
        images.push_packed(address, f"bench/small{number}:1", [igzip.compress(tar, 2)], [digest(tar)], {})
        small.append(f"{host}/bench/small{number}:1")
    return Sizes(sum(map(len, packed[:_LAYERS])), sum(sizes[:_LAYERS])), large, small


async def measure(
    running: Mapping[str, Side], large: list[str], small: list[str], rounds: int
) -> tuple[dict[str, Samples], dict[str, Store]]:
    """Time pulls, the sides in turn; before SHARING and REBASED the runtime has all and only the named
    images.
    """
    samples = {name: Samples() for name in running}
    stores: dict[str, Store] = {}
    for _ in range(rounds):
        for name, side in running.items():
            with Peak(side.daemons) as peak:
                empty = await _disk(side.store)
                await samples[name].time(FIRST, side.client.pull(large[0]))
                await samples[name].time(SHARING, side.client.pull(large[1]))
                disk = await _disk(side.store) - empty
                await samples[name].time(REBASED, side.client.pull(large[2]))
                crowd = asyncio.gather(*(side.client.pull(image) for image in small))
                await samples[name].time(SMALL, crowd)
            stores[name] = Store(disk, max(peak.bytes, stores[name].peak if name in stores else 0))
            for image in (*large, *small):
                await side.client.remove_image(image)
    return samples, stores


async def _disk(folder: Path) -> int:
    """Bytes on the disk as du counts them, after all writes."""
    command = ["du", "-s", "--block-size=1", str(folder)]
    await asyncio.to_thread(os.sync)
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0])


def _files() -> Iterator[Path]:
    """Files of this machine, endlessly, in the same order each time."""
    found: list[Path] = []
    for source in _SOURCES:
        found += itertools.islice(_below(source), _MOST_FILES)
    random.Random(4).shuffle(found)
    while True:
        yield from found


def _below(source: str) -> Iterator[Path]:
    for folder, folders, names in os.walk(source):
        folders.sort()
        yield from (path for name in sorted(names) if not (path := Path(folder, name)).is_symlink())


def _layer(files: Iterator[Path], number: int, size: int) -> bytes:
    """A tar of about ``size`` bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        while buffer.tell() < size:
            path = next(files)
            try:
                data = path.read_bytes() if path.stat().st_size <= min(_LARGEST, size) else b""
            except OSError:
                continue
            if not data:
                continue
            info = tarfile.TarInfo(f"layer{number}{path}.{buffer.tell()}")
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
