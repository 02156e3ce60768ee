"""Losses of squashfs: counted; a file never gets wider permissions."""

from __future__ import annotations

from struct import pack

import pytest

from images.bounds.limits import ImageLimits
from images.layer import losses, tarstream
from images.layer.stream import PlainStream
from images.rootfs.plan import FilesystemPlan, Planner
from tests.support.images.images import Layer

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def _acl(*entries: tuple[int, int], version: int = 2) -> bytes:
    return pack("<I", version) + b"".join(pack("<HHI", tag, allowed, 0xFFFFFFFF) for tag, allowed in entries)


def _planned(*layers: Layer) -> FilesystemPlan:
    planner = Planner("image", ImageLimits())
    for layer in layers:
        planner.apply(tarstream.entries(PlainStream(iter([layer.tar()]), "layer"), 1 << 20, lambda _: None))
    return planner.plan()


def test_each_loss_is_counted() -> None:
    acl = _acl((USER_OBJ, 7), (USER, 7), (GROUP_OBJ, 5), (MASK, 7), (OTHER, 5))
    layer = Layer().file("kept", xattrs={"user.a": b"1", "security.capability": b"2"})
    layer.file("both", xattrs={"system.posix_acl_access": acl}, mtime=1.5)
    layer.dir("default", xattrs={"system.posix_acl_default": acl})
    layer.file("star", pax_headers={"SCHILY.acl.access": "user::rw-,group::r--,other::r--"})
    layer.file("other", xattrs={"system.nfs4_acl": b"1", "btrfs.compression": b"zstd"})
    layer.file("overlay", xattrs={"trusted.overlay.opaque": b"y"}).symlink("l", "x", xattrs={"user.a": b"1"})
    layer.file("before", mtime=-1).file("after", mtime=1 << 32).file("whole", mtime=7)
    assert _planned(layer).lost == {
        "posix_acls": 3,
        "extended_attributes": 1,
        "time_fractions": 1,
        "times_out_of_range": 2,
    }


def test_files_hidden_by_a_higher_layer_are_not_losses() -> None:
    assert (
        _planned(Layer().file("f", mtime=1.5).file("g", mtime=-5), Layer().file(".wh.f").file("g")).lost == {}
    )


def test_a_file_of_several_names_counts_once() -> None:
    assert _planned(Layer().file("f", mtime=1.5).link("g", "f")).lost == {"time_fractions": 1}


@pytest.mark.parametrize(
    ("said", "seconds", "lost"),
    [
        ("12.000000000", 12, 0),
        ("12.000000001", 12, losses.FRACTION),
        ("-0.5", 0, losses.RANGE),
        ("-1.5", 0, losses.RANGE),
        ("-9999999999", 0, losses.RANGE),
        ("4294967295", 0xFFFFFFFF, 0),
        ("4294967295.5", 0xFFFFFFFF, losses.FRACTION),
        ("4294967296", 0xFFFFFFFF, losses.RANGE),
        ("99999999999.5", 0xFFFFFFFF, losses.RANGE),
    ],
)
def test_times_are_clamped_to_whole_seconds_and_losses_noted(said: str, seconds: int, lost: int) -> None:
    tar = Layer().file("f", pax_headers={"mtime": said}).tar()
    (entry,) = tarstream.entries(PlainStream(iter([tar]), "layer"), 1 << 20, lambda _: None)
    assert (entry.mtime, entry.lost) == (seconds, lost)


@pytest.mark.parametrize(
    ("acl", "mode"),
    [
        # Its group reads alone; the mask, shown by the mode, let a named user write.
        (_acl((USER_OBJ, 6), (USER, 6), (GROUP_OBJ, 4), (MASK, 6), (OTHER, 0)), 0o2640),
        # The mask takes from the group too.
        (_acl((USER_OBJ, 6), (GROUP_OBJ, 7), (GROUP, 7), (MASK, 2), (OTHER, 0)), 0o2620),
        (_acl((USER_OBJ, 6), (GROUP_OBJ, 6), (OTHER, 0)), 0o2660),
        (_acl((GROUP_OBJ, 0), version=1), 0o2660),
        (_acl((GROUP_OBJ, 0)) + b"x", 0o2660),
        (b"", 0o2660),
    ],
)
def test_a_group_may_do_no_more_without_the_acl(acl: bytes, mode: int) -> None:
    layer = Layer().file("f", mode=0o2660, xattrs={"system.posix_acl_access": acl})
    ((_, _), (path, node)) = _planned(layer).bare
    assert (path, node.mode) == (b"f", mode)
