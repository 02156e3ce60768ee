"""Archives of images: how many members one may have."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from cri.images.concurrency import CancelToken
from cri.images.errors import Unpackable
from cri.images.registry.archive_files import MAX_MEMBERS
from cri.images.registry.archives import ImageLayout, open_layout
from cri.images.settings import ImageLimits
from daemonkit.faults import Invalid


def _open(path: Path, work: Path, **limits: int) -> ImageLayout:
    return open_layout(path, ImageLimits(**limits), work, CancelToken())


def _archive(path: Path, files: int, links: int) -> Path:
    """Empty files, then links, under names of their own."""
    with path.open("wb") as out:
        for number in range(files + links):
            member = tarfile.TarInfo(f"member-{number}")
            if number >= files:
                member.type, member.linkname = tarfile.SYMTYPE, "member-0"
            out.write(member.tobuf(tarfile.USTAR_FORMAT))
        out.write(bytes(1024))
    return path


@pytest.mark.parametrize("links", [0, MAX_MEMBERS // 2, MAX_MEMBERS - 1])
def test_an_archive_of_too_many_members(tmp_path: Path, links: int) -> None:
    with pytest.raises(Invalid, match="no OCI layout"):
        _open(_archive(tmp_path / "full", MAX_MEMBERS - links, links), tmp_path / "work").images()
    with pytest.raises(Unpackable, match=f"more than {MAX_MEMBERS} members"):
        _open(_archive(tmp_path / "more", MAX_MEMBERS - links, links + 1), tmp_path / "work")
