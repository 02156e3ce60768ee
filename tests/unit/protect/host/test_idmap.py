"""Mapped ids: the lines of uid_map and gid_map, and kernels with user namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from protect.host.idmap import lines
from protect.model.zone import ZoneIdMapping
from protect.toolstack.libxl.kernel import has_user_namespaces


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (ZoneIdMapping(65536, 65536), ["0 65536 65536", "4294967294 0 1"]),
        (ZoneIdMapping(1, 2**32 - 2), ["0 1 4294967294", "4294967294 0 1"]),
        # The host's root already has a name in the namespace.
        (ZoneIdMapping(0, 1000), ["0 0 1000"]),
    ],
)
def test_the_host_s_root_can_make_files(mapping: ZoneIdMapping, expected: list[str]) -> None:
    """Neither side of a mapping may overlap (user_namespaces(7))."""
    assert lines(mapping).splitlines() == expected
    ranges = [tuple(int(word) for word in line.split()) for line in expected]
    for side in (0, 1):
        ordered = sorted((each[side], each[side] + each[2]) for each in ranges)
        assert all(before[1] <= after[0] for before, after in zip(ordered, ordered[1:], strict=False))


@pytest.mark.parametrize(
    ("content", "has"), [(b"a\0user_namespace\0b", True), (b"no_user_namespaces", False)]
)
def test_kernels_with_user_namespaces(tmp_path: Path, content: bytes, has: bool) -> None:
    kernel = tmp_path / "vmlinux"
    kernel.write_bytes(b"\x7fELF" + bytes(100) + content)
    assert has_user_namespaces(kernel) is has
