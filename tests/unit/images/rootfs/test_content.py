"""Names of filesystems by their inputs: equal exactly when the inputs are equal."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.bounds.limits import ImageLimits
from images.image_errors import Unpackable
from images.layer.layers import LayerIndex, read_layer
from images.rootfs import tarwrite
from images.rootfs.content import content_id
from images.rootfs.plan import FilesystemPlan, Planner
from tests.support.images.images import Layer, digest


def _index(tar: bytes) -> LayerIndex:
    return read_layer([tar], len(tar), digest(tar), ImageLimits())


def _planned(below: Sequence[bytes], own: Sequence[bytes]) -> tuple[FilesystemPlan, str]:
    """The filesystem of ``own`` over ``below``, and its name."""
    planner = Planner("image", ImageLimits())
    for tar in below:
        planner.apply(_index(tar).entries)
    planner.plan()
    for tar in own:
        planner.apply(_index(tar).entries)
    plan = planner.plan()
    return plan, content_id(plan, [digest(tar) for tar in (*below, *own)]).value


def _name(below: Layer, own: bytes) -> str:
    return _planned([below.tar()], [own])[1]


_BASE: Callable[[], Layer] = lambda: Layer().dir("usr").file("usr/a", b"1").symlink("lib", "usr")  # noqa: E731
_OWN = {
    "implied parents": Layer().file("usr/share/x", b"x").file("new/y", b"y").tar(),
    "whiteout": Layer().file("usr/.wh.a").tar(),
    "opaque": Layer().file("usr/.wh..wh..opq").file("usr/b", b"b").tar(),
    "hard link": Layer().link("usr/again", "usr/a").tar(),
    "directory to file": Layer().file("usr", b"no directory").tar(),
    "through a link": Layer().file("lib/z", b"z").tar(),
}


@pytest.mark.parametrize("own", _OWN.values(), ids=_OWN)
def test_unrelated_lower_files_do_not_change_a_filesystems_name(own: bytes) -> None:
    other = _BASE().dir("etc").file("etc/passwd", b"root").file("var/log", b"2")
    # A hard link includes the lower file's data, and the other layer has the data at another place.
    same = _name(_BASE(), own) == _name(other, own)
    assert same == (own != _OWN["hard link"])


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("implied parents", lambda: Layer().dir("usr", mode=0o700).file("usr/a", b"1").symlink("lib", "usr")),
        ("implied parents", lambda: Layer().dir("usr", xattrs={"user.a": b"1"}).symlink("lib", "usr")),
        ("implied parents", lambda: _BASE().dir("./", mode=0o711)),
        ("implied parents", lambda: Layer().symlink("usr", "elsewhere")),
        ("whiteout", lambda: Layer().dir("usr").file("usr/b", b"1")),
        ("opaque", lambda: _BASE().file("usr/more", b"1")),
        ("hard link", lambda: Layer().dir("usr").file("usr/a", b"2")),
        ("hard link", lambda: _BASE().link("usr/third", "usr/a")),
        ("directory to file", lambda: _BASE().dir("./", uid=5)),
        ("through a link", lambda: Layer().dir("usr").file("usr/a", b"1").dir("lib")),
    ],
)
def test_used_lower_files_change_a_filesystems_name(own: str, other: Callable[[], Layer]) -> None:
    assert _name(_BASE(), _OWN[own]) != _name(other(), _OWN[own])


def test_every_layer_of_a_part_is_in_its_name() -> None:
    one, two = Layer().file("x", b"1").tar(), Layer().file("y", b"1").tar()
    changed = Layer().file("y", b"2").tar()
    base = _BASE().tar()
    names = [_planned([base], own)[1] for own in ([one], [two], [one, two], [two, one], [one, changed])]
    # The order of the two does not change the files, but the order of their bytes.
    assert len(set(names)) == 5


_NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/f", "l", "l/a"])


_Steps = list[tuple[int, str, str, int, int]]
_STEPS = st.lists(
    st.tuples(st.integers(0, 6), _NAMES, _NAMES, st.sampled_from([0o755, 0o700]), st.integers(0, 2)),
    min_size=1,
    max_size=5,
)


def _layer(steps: _Steps) -> bytes:
    layer = Layer()
    for kind, name, other, mode, number in steps:
        above, _, base = name.rpartition("/")
        match kind:
            case 0:
                layer.file(name, b"x" * number, mode=mode)
            case 1:
                layer.dir(name, mode=mode)
            case 2:
                layer.symlink(name, ("d", "..", "a")[number])
            case 3:
                layer.link(name, other)
            case 4:
                layer.file(f"{above}/" * bool(above) + f".wh.{base}")
            case 5:
                layer.file(f"{above}/" * bool(above) + ".wh..wh..opq")
            case _:
                layer.add(name, tarfile.CHRTYPE, devmajor=0, devminor=number)
    return layer.tar()


def _stream(plan: FilesystemPlan, tars: Sequence[bytes]) -> list[bytes]:
    """The stream to be written, with the bytes of files."""
    written = []
    for layer in plan.order:
        for path, node in plan.files[layer]:
            content = node.content
            assert content is not None
            data = tars[layer][content.offset : content.offset + content.stored]
            written += [tarwrite.member(path, node)[0], data]
    written += [tarwrite.member(path, node)[0] for path, node in plan.bare]
    return written + [tarwrite.hard_link(*link) for link in plan.links]


_RECIPES = st.lists(_STEPS, max_size=2)


@given(_RECIPES, _RECIPES, st.lists(_STEPS, min_size=1, max_size=2))
def test_equal_names_are_equal_streams_over_any_layers(
    below: list[_Steps], other_below: list[_Steps], own_steps: list[_Steps]
) -> None:
    one, two, own = ([_layer(steps) for steps in recipe] for recipe in (below, other_below, own_steps))
    try:
        (plan, name), (other, its_name) = _planned(one, own), _planned(two, own)
    except Unpackable:
        return
    streams = _stream(plan, [*one, *own]), _stream(other, [*two, *own])
    if name == its_name:
        assert streams[0] == streams[1]
    elif streams[0] == streams[1]:
        # The same bytes from other layers: only a file of lower layers can have them.
        lower = len(one), len(two)
        assert min((*plan.order, len(one))) < lower[0] or min((*other.order, len(two))) < lower[1]
