"""An image of three file systems, with every kind of change to a lower file system."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

OPAQUE = {"SCHILY.xattr.trusted.overlay.opaque": "y"}


def directory(name: str, mode: int = 0o755, owner: int = 0, *, opaque: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    entry.pax_headers = dict(OPAQUE) if opaque else {}
    return entry


def whiteout(name: str) -> tarfile.TarInfo:
    """A character device 0:0, as overlayfs wants."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.CHRTYPE, 0
    return entry


def file(name: str, owner: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.uid, entry.gid = mode, owner, owner
    return entry


def squashed(out: Path, entries: Iterable[tarfile.TarInfo]) -> Path:
    """A squashfs with these entries; a file contains the name of ``out``, as a line."""
    said = f"{out.stem}\n".encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if entry.isreg():
                entry.size = len(said)
            tar.addfile(entry, io.BytesIO(said) if entry.isreg() else None)
    command = ["tar2sqfs", "--quiet", "--force", str(out)]
    subprocess.run(command, input=stream.getvalue(), check=True, capture_output=True)
    return out


def upper_two(folder: Path) -> list[Path]:
    """Layers on top of ``lowest``."""
    middle = squashed(
        folder / "middle.squashfs",
        (
            directory("./", 0o755),
            whiteout("gone"),
            whiteout("back"),
            directory("merged", 0o700, 1000),
            whiteout("merged/low"),
            file("merged/middle", 1000),
            directory("opaque", opaque=True),
            file("opaque/middle"),
            file("was-directory"),
            directory("was-file"),
            file("was-file/middle"),
            whiteout("tree"),
            file("setuid", 7, 0o4755),
        ),
    )
    top = squashed(
        folder / "top.squashfs",
        (
            # The root directory's own attributes are something that an overlay must show.
            directory("./", 0o751),
            file("back"),
            directory("merged", 0o755, 1000),
            file("merged/top"),
            whiteout("was-directory"),
            directory("tree"),
            file("tree/top"),
        ),
    )
    return [middle, top]


def lowest(folder: Path) -> Path:
    return squashed(
        folder / "lowest.squashfs",
        (
            directory("./", 0o711, 5),
            *(file(name) for name in ("kept", "gone", "back", "was-file", "setuid")),
            directory("merged"),
            *(file(f"merged/{name}") for name in ("low", "both")),
            directory("opaque"),
            file("opaque/low"),
            directory("was-directory"),
            file("was-directory/low"),
            directory("tree"),
            directory("tree/deep"),
            file("tree/deep/low"),
        ),
    )


SHOWN = """\
back top
kept lowest
merged/both lowest
merged/middle middle
merged/top top
opaque/middle middle
setuid middle
tree/top top
was-file/middle middle
"""
"""Every file of the three layers, and the layer of the file: by ``LISTING``."""

LISTING = (
    "for one in back gone kept merged/* opaque/* setuid tree/* tree/deep/* was-directory was-directory/* "
    "was-file was-file/*; do if test -f $one; then echo $one $(cat $one); fi; done; "
)
