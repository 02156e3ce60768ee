"""Trees of small files: accepted trees, limits, and changes during the read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from protect.model.copied_files import FileChunk, FileKind, FilesChanged, FileTree, FileVolume
from protect.volumes import filetree
from protect.volumes.filetree import MOST_BYTES, MOST_ENTRIES, NotCopied, read_chunks, scan
from protect.workloads.put_files import PART_BYTES, divided
from tests.support.cri.kubelet_files import AtomicFiles
from tests.support.session.open_files import descriptors, opened_since


def taken(path: Path, **more: object) -> FileTree:
    """As a ConfigMap's volume, unless ``more`` says otherwise."""
    values: dict[str, object] = {"name": "0", "host_path": str(path), "keep_current": True}
    place = os.open(path, os.O_PATH)
    try:
        return scan(place, FileVolume(**(values | more)))  # type: ignore[arg-type]
    finally:
        os.close(place)


def contents(tree: FileTree) -> dict[str, bytes]:
    files = [entry for entry in tree.entries if entry.kind is FileKind.REGULAR]
    return {
        entry.path: content
        for entry, content in zip(
            files, read_chunks(tree, [FileChunk(entry, 0, entry.size) for entry in files]), strict=True
        )
    }


@pytest.fixture
def files(tmp_path: Path) -> AtomicFiles:
    made = AtomicFiles(tmp_path / "volume")
    made.write({"a": "one", "deep/b": "two"})
    return made


def test_the_current_version_is_copied(files: AtomicFiles) -> None:
    """Links come last; the first link makes the version current."""
    (files.path / "..2020_old").mkdir()
    tree = taken(files.path)
    top = os.readlink(files.path / "..data")
    assert [entry.path for entry in tree.entries] == [
        "", top, f"{top}/a", f"{top}/deep", f"{top}/deep/b", "..data", "a", "deep",
    ]  # fmt: skip
    assert [entry.target.decode() for entry in tree.entries[-3:]] == [top, "..data/a", "..data/deep"]
    assert sorted(tree.keep) == sorted([top, "..data", "a", "deep"])
    assert contents(tree) == {f"{top}/a": b"one", f"{top}/deep/b": b"two"}
    assert tree.size_bytes == 10 * 4096
    again = taken(files.path)
    assert again.version == tree.version
    files.write({"a": "one", "deep/b": "two"})
    assert taken(files.path).version != tree.version
    with pytest.raises(FilesChanged):
        contents(again)


def test_new_version_during_the_read_is_read(files: AtomicFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a new version comes during the read, the new version is read."""
    real, swaps = filetree._Walk.tree, iter([{"a": "two"}, {"a": "three"}])

    def tree(walk: filetree._Walk, directory: int, path: str, **more: bool) -> None:
        real(walk, directory, path, **more)
        if "/" not in path and (content := next(swaps, None)):
            files.write(content)

    monkeypatch.setattr(filetree._Walk, "tree", tree)
    seen = taken(files.path)
    assert list(contents(seen).values()) == [b"three"]


def test_constantly_changing_tree_is_not_copied(files: AtomicFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    real, number = filetree._Walk.tree, iter(range(100))

    def tree(walk: filetree._Walk, directory: int, path: str, **more: bool) -> None:
        real(walk, directory, path, **more)
        files.write({"a": str(next(number))})

    monkeypatch.setattr(filetree._Walk, "tree", tree)
    with pytest.raises(NotCopied, match="all the time"):
        taken(files.path)


def no_data(path: Path) -> None:
    (path / "..data").unlink()


def data_elsewhere(path: Path) -> None:
    (path / "..data").unlink()
    (path / "..data").symlink_to("/etc")


def data_above(path: Path) -> None:
    (path / "..data").unlink()
    (path / "..data").symlink_to("..")


def a_plain_file(path: Path) -> None:
    (path / "plain").write_text("")


def a_link_elsewhere(path: Path) -> None:
    (path / "l").symlink_to("/etc/passwd")


def a_link_below(path: Path) -> None:
    (path / "..data" / "l").symlink_to("a")


def a_pipe(path: Path) -> None:
    os.mkfifo(path / "..data" / "p")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path / "..data" / "s"))


def a_name(path: Path) -> None:
    os.close(os.open(os.fsencode(path) + b"/..data/\xff", os.O_CREAT | os.O_WRONLY))


def many(path: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (path / "..data" / str(number)).touch()


def many_links(path: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (path / str(number)).symlink_to(f"..data/{number}")


def long_names(path: Path) -> None:
    for number in range(800):
        (path / "..data" / f"{number:0200}").touch()


def large(path: Path) -> None:
    with (path / "..data" / "large").open("wb") as file:
        file.truncate(MOST_BYTES)


def deep(path: Path) -> None:
    (path / "..data").joinpath(*"d" * 40).mkdir(parents=True)


@pytest.mark.parametrize(
    "change",
    [
        no_data, data_elsewhere, data_above, a_plain_file, a_link_elsewhere, a_link_below, a_pipe, a_socket,
        a_name, many, many_links, long_names, large, deep,
    ],
)  # fmt: skip
def test_unsuitable_tree_is_not_copied(files: AtomicFiles, change: Callable[[Path], None]) -> None:
    before = descriptors()
    change(files.path)
    with pytest.raises(NotCopied):
        taken(files.path)
    assert not opened_since(before)


def test_any_unfollowed_tree_is_copied(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/file").write_text("text")
    (tmp_path / "d/e/link").symlink_to("../file")
    (tmp_path / "top").symlink_to("d")
    tree = taken(tmp_path, keep_current=False)
    assert contents(tree) == {"d/file": b"text"} and sorted(tree.keep) == ["d", "top"]
    for target in ("/etc", "..", "../x", "d/../../x"):
        (tmp_path / "out").symlink_to(target)
        with pytest.raises(NotCopied, match="leads out"):
            taken(tmp_path, keep_current=False)
        (tmp_path / "out").unlink()


def test_a_single_file_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("x" * 5000)
    tree = taken(path, return_bytes=9, writable=True)
    assert contents(tree) == {"": b"x" * 5000} and not tree.keep and tree.size_bytes == 3 * 4096
    with pytest.raises(NotCopied, match="written back"):
        taken(tmp_path, return_bytes=9, writable=True)


def test_a_grown_or_replaced_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    tree = taken(tmp_path, keep_current=False)
    chunk = FileChunk(next(entry for entry in tree.entries if entry.path == "file"), 0, 6)
    assert read_chunks(tree, [chunk]) == [b"before"]
    with path.open("a") as file:
        file.write("more")
    with pytest.raises(FilesChanged):
        read_chunks(tree, [chunk])
    makers: tuple[Callable[[], None], ...] = (
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/etc/passwd"),
    )
    for make in makers:
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        with pytest.raises(FilesChanged):
            read_chunks(tree, [chunk])
    path.unlink()
    with pytest.raises(FilesChanged):
        read_chunks(tree, [chunk])


def test_parts_are_small_and_whole(files: AtomicFiles) -> None:
    sizes = {"a": 3 * PART_BYTES + 1, "b": 0, "c": PART_BYTES, "d": 1}
    files.write({name: b"x" * size for name, size in sizes.items()})
    tree = taken(files.path)
    parts = list(divided(tree))
    assert all(sum(chunk.count for chunk in part) <= PART_BYTES for part in parts)
    chunks = [chunk for part in parts for chunk in part]
    for name, size in sizes.items():
        own = [chunk for chunk in chunks if chunk.entry.path.endswith(f"/{name}")]
        assert sum(chunk.count for chunk in own) == size
        assert [chunk.more for chunk in own] == [True] * (len(own) - 1) + [False]
        assert [chunk.offset for chunk in own] == [sum(c.count for c in own[:at]) for at in range(len(own))]
    links = [chunk for chunk in chunks if chunk.entry.kind is FileKind.SYMLINK]
    assert parts[-1][-len(links) :] == links and links[0].entry.path == "..data"
    assert [chunk.entry for chunk in chunks if not chunk.offset] == list(tree.entries)
