"""Archives of images: the bound on members."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from daemonkit.faults import Invalid, Missing
from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.image_errors import Unpackable
from images.registry.archive_files import MAX_MEMBERS
from images.registry.archives import ImageLayout, open_layout


def _open(path: Path, work: Path, **limits: int) -> ImageLayout:
    return open_layout(path, ImageLimits(**limits), work, CancelToken())


def _archive(path: Path, files: int, links: int) -> Path:
    """Empty files, then links, with different names."""
    with path.open("wb") as out:
        for number in range(files + links):
            member = tarfile.TarInfo(f"member-{number}")
            if number >= files:
                member.type, member.linkname = tarfile.SYMTYPE, "member-0"
            out.write(member.tobuf(tarfile.USTAR_FORMAT))
        out.write(bytes(1024))
    return path


@pytest.mark.parametrize("links", [0, MAX_MEMBERS // 2, MAX_MEMBERS - 1])
def test_an_archive_of_too_many_members_is_refused(tmp_path: Path, links: int) -> None:
    with pytest.raises(Invalid, match="no OCI layout"):
        _open(_archive(tmp_path / "full", MAX_MEMBERS - links, links), tmp_path / "work").images()
    with pytest.raises(Unpackable, match=f"more than {MAX_MEMBERS} members"):
        _open(_archive(tmp_path / "more", MAX_MEMBERS - links, links + 1), tmp_path / "work")


@pytest.mark.parametrize(
    "name", ["../secret.json", "{tmp}/secret.json", "folder/secret.json", "link.json", "\0link.json"]
)
def test_a_directory_gives_no_file_outside_itself(tmp_path: Path, name: str) -> None:
    """Names in manifest.json are anybody's, and the daemon may read all files."""
    (tmp_path / "secret.json").write_text("{}")
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "folder").symlink_to(tmp_path)
    (layout / "link.json").symlink_to("../secret.json")
    listed = [{"Config": name.format(tmp=tmp_path), "Layers": []}]
    (layout / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(Missing, match=r"secret\.json|link\.json"):
        _open(layout, tmp_path / "work").images()
    # Inside, a link may lead anywhere.
    (layout / "inner").mkdir()
    (layout / "inner/config.json").write_text("{}")
    (layout / "manifest.json").write_text(json.dumps([{"Config": "inner/config.json", "Layers": []}]))
    assert len(_open(layout, tmp_path / "work").images()) == 1
