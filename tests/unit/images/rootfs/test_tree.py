"""The merge rules, entry by entry (the same layers go through umoci in tests/integration)."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.bounds.limits import ImageLimits
from images.image_errors import Oversized, Unpackable
from images.layer import tarstream
from images.layer.stream import PlainStream
from images.rootfs.plan import Planner
from images.rootfs.tree import MergedTree
from tests.support.images.images import Layer


def _tree(*layers: Layer, limits: ImageLimits = ImageLimits()) -> MergedTree:  # noqa: B008
    tree = MergedTree("image", limits)
    for number, layer in enumerate(layers):
        tree.apply(
            number,
            list(tarstream.entries(PlainStream(iter([layer.tar()]), "layer"), 1 << 20, lambda _: None)),
        )
    return tree


def _paths(tree: MergedTree) -> dict[str, str]:
    """Path to "d", "l:target" or "<layer>:<size>"."""
    shown: dict[str, str] = {}
    for path, node in tree.difference():
        layer = "" if node.content is None else node.content.layer
        text = {tarstream.DIR: "d", tarstream.SYMLINK: f"l:{node.target.decode()}"}.get(
            node.kind, f"{layer}:{node.size}"
        )
        shown[path.decode()] = text
    del shown[""]
    return shown


def _planned(limits: ImageLimits, *layers: Layer) -> Planner:
    planner = Planner("image", limits)
    for layer in layers:
        planner.apply(
            list(tarstream.entries(PlainStream(iter([layer.tar()]), "layer"), 1 << 20, lambda _: None))
        )
    return planner


def test_plan_counts_bytes_of_paths_and_files() -> None:
    """Bytes of paths, and of files; each counts once, also if a higher layer hides it."""
    layers = Layer().dir("d").file("d/f", b"123").file("g", b"1"), Layer().file("d/f", b"22")
    planner = _planned(ImageLimits(index_bytes=5, unpacked_bytes=9), *layers)
    assert planner.plan().spent == (5, 3)
    with pytest.raises(Oversized, match="more than 4 bytes of paths.*images.limits.index_bytes"):
        _planned(ImageLimits(index_bytes=4), *layers).plan()
    planner.apply([])
    assert planner.plan().spent == (0, 0)


def test_a_higher_layer_wins() -> None:
    tree = _tree(Layer().dir("d").file("d/f", b"1").file("g", b"1"), Layer().file("d/f", b"22"))
    assert _paths(tree) == {"d": "d", "d/f": "1:2", "g": "0:1"}


def test_whiteouts_hide_lower_layers_only() -> None:
    lower = (
        Layer().dir("d").file("d/f", b"1").file("g", b"1").dir("o").file("o/x", b"1").dir("o/s").file("o/s/y")
    )
    upper = Layer().file(".wh.g").file("d/new", b"1").file(".wh.d").file("o/s/z").file("o/.wh..wh..opq")
    assert _paths(_tree(lower, upper)) == {"d": "d", "d/new": "1:1", "o": "d", "o/s": "d", "o/s/z": ":0"}


def test_an_opaque_root_hides_everything_below() -> None:
    assert _paths(_tree(Layer().file("a").dir("b"), Layer().file("c").file(".wh..wh..opq"))) == {"c": ":0"}


def test_a_whiteout_of_nothing_does_nothing() -> None:
    assert _paths(_tree(Layer().file(".wh.a").file("no/where/.wh.b").file("c"))) == {"c": ":0"}


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh.", "d/.wh..."])
def test_a_whiteout_of_no_name_is_refused(name: str) -> None:
    with pytest.raises(Unpackable):
        _tree(Layer().dir("d").file("d/x"), Layer().file(name))


def test_files_replace_directories_and_back() -> None:
    one = Layer().dir("a").file("a/x", b"1").file("b", b"1")
    two = Layer().file("a", b"22").dir("b").file("b/y", b"22")
    three = Layer().dir("a").symlink("b", "a")
    assert _paths(_tree(one, two)) == {"a": "1:2", "b": "d", "b/y": "1:2"}
    assert _paths(_tree(one, two, three)) == {"a": "d", "b": "l:a"}


def test_the_last_of_duplicates_counts() -> None:
    assert _paths(_tree(Layer().file("a", b"1").file("a", b"22").dir("d").file("d", b"333"))) == {
        "a": "0:2",
        "d": "0:3",
    }


def test_a_directory_entry_changes_the_existing_directory() -> None:
    tree = _tree(Layer().dir("d", mode=0o700, uid=5).file("d/x"), Layer().dir("d", mode=0o1777, uid=7))
    node = tree.find(b"/d")
    assert node is not None
    assert (node.mode, node.uid) == (0o1777, 7)
    assert "d/x" in _paths(tree)


def test_missing_parents_are_made() -> None:
    node = _tree(Layer().file("a/b/c")).find(b"a/b")
    assert node is not None
    assert (node.kind, node.mode, node.uid) == (tarstream.DIR, 0o755, 0)


def test_names_stay_inside_the_root() -> None:
    layer = Layer().file("../../up").file("/abs").file("a/../../b").dir("/").dir("./").file("x/./y//z")
    assert set(_paths(_tree(layer))) == {"up", "abs", "b", "x", "x/y", "x/y/z"}


def test_symlinked_parents_are_followed_inside_the_root() -> None:
    layer = Layer().symlink("etc", "/../../real").file("etc/f", b"1").symlink("up", "..").file("up/g", b"1")
    layer.symlink("new", "not/yet").file("new/h", b"1")
    assert _paths(_tree(layer)) == {
        "etc": "l:/../../real",
        "g": "0:1",
        "new": "l:not/yet",
        "not": "d",
        "not/yet": "d",
        "not/yet/h": "0:1",
        "real": "d",
        "real/f": "0:1",
        "up": "l:..",
    }


def test_a_symlink_with_the_name_is_replaced_not_followed() -> None:
    tree = _tree(
        Layer().file("target", b"1").symlink("l", "target").symlink("d", "."),
        Layer().file("l", b"22").dir("d"),
    )
    assert _paths(tree) == {"target": "0:1", "l": "1:2", "d": "d"}


@pytest.mark.parametrize(
    "layer",
    [
        Layer().symlink("a", "b").symlink("b", "a").file("a/x"),
        Layer().file("f").file("f/x"),
        Layer().file("f").dir("f/x/y"),
        Layer().link("a", "nothing"),
        Layer().link("a", "a"),
        Layer().dir("d").link("a", "d"),
        Layer().link("a", "/"),
        Layer().file("/", b""),
        Layer().symlink("..", "x"),
        Layer().symlink("a", ""),
        Layer().symlink("a", "x" * 4096),
        Layer().file("n" * 256),
        Layer().file("/".join(["d" * 200] * 21)),
        Layer().file("f", xattrs={"user.big": b"x" * (50 << 10)}),
        Layer().file("f", xattrs={"user." + "n" * 260: b"x"}),
    ],
    ids=lambda layer: "",
)
def test_entry_beyond_any_filesystem_is_refused(layer: Layer) -> None:
    with pytest.raises(Unpackable):
        _tree(layer)


def test_layer_with_too_many_path_steps_is_refused() -> None:
    deep = Layer().symlink("s", "d/" * 1000).dir("d/" * 1000)
    for number in range(30):
        deep.file(f"s/{number}/f")
    again = Layer()
    for number in range(250):
        again.file(f"d/{number}").file("d/.wh..wh..opq")
    loops = Layer().symlink("a0", "d")
    for number in range(1, 200):
        loops.symlink(f"a{number}", ("./" * 20) + f"a{number - 1}")
    for number in range(30):
        loops.file(f"a150/{number}/f")
    for layer in (deep, again, loops):
        with pytest.raises(Oversized, match="images.limits.path_steps"):
            _tree(layer, limits=ImageLimits(path_steps=10_000))


def test_implicit_directories_are_bounded_too() -> None:
    layer = Layer()
    for number in range(20):
        layer.file(f"{number}/" + "d/" * 1000 + "f")
    with pytest.raises(Oversized, match="images.limits.memory_bytes"):
        _tree(layer, limits=ImageLimits(memory_bytes=10_000_000))


def test_a_file_beyond_the_limit_is_refused() -> None:
    tree = MergedTree("image", ImageLimits(unpacked_bytes=100))
    with pytest.raises(Oversized):
        tree.apply(
            0,
            list(
                tarstream.entries(
                    PlainStream(iter([Layer().file("f", b"x" * 101).tar()]), ""), 1 << 20, lambda _: None
                )
            ),
        )


def test_hard_links_share_an_inode_across_layers() -> None:
    one = Layer().file("a", b"1").link("b", "a")
    two = Layer().link("c", "b").file("a", b"22")
    tree = _tree(one, two)
    b, c, a = tree.find(b"b"), tree.find(b"c"), tree.find(b"a")
    assert b is c and a is not b
    assert _paths(tree) == {"a": "1:2", "b": "0:1", "c": "0:1"}


def test_a_hard_link_to_a_symlink_is_the_symlink() -> None:
    tree = _tree(
        Layer().symlink("l", "x").link("h", "l").dir("d").symlink("s", "d").file("d/f", b"1").link("g", "s/f")
    )
    assert _paths(tree) == {"l": "l:x", "h": "l:x", "d": "d", "s": "l:d", "d/f": "0:1", "g": "0:1"}


def test_storable_attributes_are_kept() -> None:
    layer = Layer().file(
        "f",
        xattrs={
            "user.a": b"\0\xff",
            "security.capability": b"1",
            "trusted.x": b"2",
            "trusted.overlay.opaque": b"y",
            "system.posix_acl_access": b"3",
        },
    )
    layer.symlink("l", "f", xattrs={"user.a": b"1", "trusted.x": b"2"})
    tree = _tree(layer)
    f, link = tree.root.names[b"f"], tree.root.names[b"l"]
    assert [key for key, _ in f.xattrs] == [b"security.capability", b"trusted.x", b"user.a"]
    assert dict(f.xattrs)[b"user.a"] == b"\0\xff"
    assert [key for key, _ in link.xattrs] == [b"trusted.x"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/etc/passwd", "real/passwd"),
        (b"/loop", None),
        (b"/outside", None),
        (b"/up/real/passwd", "real/passwd"),
        (b"/nothing/at/all", None),
        (b"/real", "real"),
        (b"/real/rel", "real/passwd"),
    ],
)
def test_find_follows_symlinks_inside_the_root(path: bytes, found: str | None) -> None:
    layer = Layer().dir("real").file("real/passwd", b"root").symlink("etc", "/real").symlink("loop", "loop")
    layer.symlink("outside", "../..").symlink("up", "../../..").symlink("real/rel", "./passwd")
    tree = _tree(layer)
    wanted = {path.decode(): node for path, node in tree.difference()}.get(found) if found else None
    assert tree.find(path) is wanted


_NAME = st.sampled_from(
    ["a", "b", "a/b", "a/b/c", "../a", "/b/c", "s", "s/x", ".", "b/.wh.c", ".wh.a", "a/.wh..wh..opq"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("fdslp"), _NAME, _NAME), max_size=8), max_size=3))
def test_any_layers_are_merged_or_refused(shape: list[list[tuple[str, str, str]]]) -> None:
    layers = []
    for entries in shape:
        layer = Layer()
        for kind, name, other in entries:
            {
                "f": lambda n, o, to: to.file(n, b"x"),
                "d": lambda n, o, to: to.dir(n),
                "s": lambda n, o, to: to.symlink(n, o),
                "l": lambda n, o, to: to.link(n, o),
                "p": lambda n, o, to: to.add(n, tarfile.FIFOTYPE),
            }[kind](name, other, layer)
        layers.append(layer)
    try:
        tree = _tree(*layers)
    except Unpackable:
        return
    paths = [path for path, _ in tree.difference()]
    assert len(paths) == len(set(paths))
    assert not any(part in (b".", b"..", b"") for path in paths[1:] for part in path.split(b"/"))
