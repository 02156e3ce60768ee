"""A program that imports images of very many entries at once, and reports its memory.

``python -m tests.hostile.images.many_entries make FOLDER IMAGES ENTRIES`` makes the images; without ``make``
the program imports them, and prints a JSON object: see Memory. The program is the daemon here. Its workers
are not counted, since they end with their pulls.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from images.image_settings import ImageSettings
from images.manager import ImageManager
from tests.support.images.images import Blob, Layer, build, digest, write_layout
from tests.support.waiting import until

_TOGETHER = 1000
# Freed memory of an idle process that is no trace of an image.
_SLACK = 16 << 20


@dataclass(frozen=True)
class Memory:
    """Bytes of resident memory: idle after a small image, the peak after that, and in the end."""

    idle: int
    peak: int
    after: int


def hostile_image(number: int, entries: int) -> Blob:
    """A layer of empty files, each with a name of its own."""
    info = Layer().file("x" * 24).tar()[:512]
    blank = info[:148] + b" " * 8 + info[156:]
    rest = sum(blank) - 24 * ord("x")
    pieces = []
    for start in range(0, entries, _TOGETHER):
        headers = []
        for entry in range(start, min(start + _TOGETHER, entries)):
            name = b"%04d/%05d/%013d" % (number, entry // 500, entry)
            headers.append(b"%b%b%06o\0 %b" % (name, info[24:148], rest + sum(name), info[156:]))
        pieces.append(b"".join(headers))
    tar = b"".join(pieces) + bytes(1024)
    return Blob(gzip.compress(tar, 1, mtime=0), digest(tar), "application/vnd.oci.image.layer.v1.tar+gzip")


def _status(key: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(key)[2].split()[0]) * 1024


def _layouts(folder: Path, images: int, entries: int) -> Iterator[Path]:
    for number in range(images):
        yield write_layout(folder / f"layout{number}", build([hostile_image(number, entries)]))


async def main(folder: Path, images: int, entries: int) -> Memory:
    """Import all images at once."""
    manager = ImageManager(ImageSettings(folder / "state", folder / "certs.d"))
    await manager.start()
    small = build([Layer().file("small", b"small").tar()])
    await manager.import_layout(write_layout(folder / "small", small), None)
    idle = _status("VmRSS:")
    # The peak begins anew.
    Path("/proc/self/clear_refs").write_text("5")
    layouts = [folder / f"layout{number}" for number in range(images)]
    await asyncio.gather(*(manager.import_layout(layout, None) for layout in layouts))
    peak = _status("VmHWM:")
    with suppress(TimeoutError):
        await until(lambda: _status("VmRSS:") < idle + _SLACK, 120)
    after = _status("VmRSS:")
    await manager.stop()
    return Memory(idle, peak, after)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        list(_layouts(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    else:
        found = asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
        sys.stdout.write(json.dumps(asdict(found)))
