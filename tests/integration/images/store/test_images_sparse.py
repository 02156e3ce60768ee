"""Sparse files in every form of GNU tar, to filesystems and back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.images.images import Layer, build, packed
from tests.support.images.stacks import built

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("tar", "tar2sqfs", "rdsquashfs")),
    reason="tar, tar2sqfs or rdsquashfs is not installed",
)
_BLOCK = 4096
_SIZE = 256 * _BLOCK
# The length, and the blocks with data.
_FILES: Mapping[str, tuple[int, Sequence[int]]] = {
    "all-hole": (_SIZE, ()),
    "one-byte-hole": (_SIZE + 1, ()),
    "empty": (0, ()),
    "hole-first": (_SIZE, (255,)),
    "hole-last": (_SIZE, (0,)),
    "holes-around": (_SIZE, (100, 101)),
    "odd-end": (_SIZE + 7, (3, 200)),
    "many-parts": (_SIZE, range(0, 256, 2)),
}
_FORMS = {
    "old GNU": ["--format=oldgnu"],
    "GNU": ["--format=gnu"],
    "PAX 0.0": ["--format=posix", "--sparse-version=0.0"],
    "PAX 0.1": ["--format=posix", "--sparse-version=0.1"],
    "PAX 1.0": ["--format=posix", "--sparse-version=1.0"],
}


def _write(folder: Path) -> None:
    folder.mkdir()
    for name, (size, blocks) in _FILES.items():
        with (folder / name).open("wb") as file:
            for block in blocks:
                file.seek(block * _BLOCK)
                file.write(name.encode().ljust(_BLOCK, b"."))
            file.truncate(size)


@pytest.mark.parametrize("form", _FORMS)
def test_sparse_files_of_gnu_tar_are_read_back_whole(tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    _write(source)
    command = ["tar", "--sparse", *_FORMS[form], "-C", str(source), "-c", *_FILES]
    tar = subprocess.run(command, check=True, capture_output=True).stdout
    # Otherwise no part was sparse.
    assert len(tar) < 2 * _SIZE
    (out, _), *_ = built(build([packed(tar)]), tmp_path / "built")
    for name in _FILES:
        read = subprocess.run(["rdsquashfs", "-c", name, out], check=True, capture_output=True).stdout
        assert read == (source / name).read_bytes(), name


def test_gigabytes_without_a_byte(tmp_path: Path) -> None:
    """A map with no parts at all, as Go's archive/tar and libarchive may write it."""
    size = 8 << 30
    layer = Layer().file("disk", pax_headers={"GNU.sparse.size": str(size), "GNU.sparse.map": "0,0"})
    head = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    layer.file("disk-1.0", b"0\n".ljust(512, b"\0"), pax_headers=head | {"GNU.sparse.name": "disk-1.0"})
    (out, _), *_ = built(build([packed(layer.tar())]), tmp_path / "built")
    listed = subprocess.run(["rdsquashfs", "-s", "disk-1.0", out], check=True, capture_output=True, text=True)
    assert str(size) in listed.stdout
    assert out.stat().st_size < 1 << 20
