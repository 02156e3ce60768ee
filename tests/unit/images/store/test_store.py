"""The store: names, holds, sweeps, and the state after a kill."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, Invalid, Missing, Refused
from images.image_settings import ImageSettings
from images.rootfs.stack import parts
from images.store.catalogue import StoredImage
from images.store.db import FilesystemRow, ImageRow
from images.store.store import ImageStore
from tests.support.images.images import facts_of


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _row(work: Path, chain_id: str, digest: str, below: str = "") -> FilesystemRow:
    return FilesystemRow(chain_id, "squashfs", work.stat().st_size, digest, below)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    made = ImageStore(ImageSettings(tmp_path, unfinished_bytes=0))
    made.open()
    yield made
    made.close()


def _reopened(store: ImageStore) -> ImageStore:
    store.close()
    again = ImageStore(ImageSettings(store.files.root.parent, unfinished_bytes=0))
    again.open()
    return again


def _blob(store: ImageStore, text: str) -> tuple[str, int]:
    with store.files.work_file("blob") as work:
        work.write_text(text)
        store.files.put(work, store.files.blob_path(_digest(text)))
    return _digest(text), len(text)


def _add(store: ImageStore, label: str, layers: list[str], *names: str) -> StoredImage:
    return _add_stack(store, label, layers, 1 << 30, *names)


def _add_stack(store: ImageStore, label: str, layers: list[str], least: int, *names: str) -> StoredImage:
    digests = [_digest(layer) for layer in layers]
    stack = parts(digests, [len(layer) for layer in layers], least)
    with store.leasing([part.chain_id for part in stack], digests):
        kept = tuple(_blob(store, layer) for layer in layers)
        for part in stack:
            if store.has_filesystem(part.chain_id):
                continue
            accounts: dict[str, bytes | None] = {} if part.below else {"/etc/passwd": b"root"}
            if layers[part.end - 1] == "nobody":
                accounts = {"/etc/passwd": None}
            with store.files.work_file("fs") as work:
                work.write_text(f"filesystem of {layers[: part.end]}")
                store.add_filesystem(
                    work,
                    FilesystemRow(part.chain_id, "squashfs", work.stat().st_size, _digest("fs"), part.below),
                    accounts,
                )
        facts = facts_of({"Labels": {"label": label}})
        top = stack[-1].chain_id
        row = ImageRow(_digest(label), top, _digest(f"m{label}"), b"{}", b"{}", kept, 1, facts=facts)
        return store.add_image(row, names)


def _files(store: ImageStore) -> set[str]:
    return {
        p.name
        for p in store.files.root.rglob("*")
        if p.is_file() and not p.name.startswith(("images.db", "lock"))
    }


def test_found_by_every_name(store: ImageStore) -> None:
    digest_name = f"docker.io/library/a@{_digest('index')}"
    image = _add(store, "one", ["base"], "docker.io/library/a:1", digest_name)
    assert (image.repo_tags, image.repo_digests) == (("docker.io/library/a:1",), (digest_name,))
    for known in (
        "a:1",
        "docker.io/a:1",
        f"a@{_digest('index')}",
        f"a:x@{_digest('index')}",
        image.id,
        image.id[7:15],
    ):
        assert store.resolve(known) == image
    for unknown in ("a", "a:2", "b:1", _digest("other"), "f" * 64, image.id[7:10], f"a@{_digest('x')}"):
        assert store.find(unknown) is None
    with pytest.raises(Missing):
        store.resolve("b:1")
    with pytest.raises(Invalid):
        store.resolve("NOT/A:name")


def test_an_ambiguous_beginning_finds_nothing(store: ImageStore) -> None:
    labels = [str(n) for n in range(70_000)]
    by_start: dict[str, str] = {}
    for label in labels:
        start = _digest(label)[7:11]
        if start in by_start:
            break
        by_start[start] = label
    _add(store, by_start[start], ["x"], "one:1")
    _add(store, label, ["y"], "two:1")
    assert store.find(start) is None
    assert store.find(_digest(label)[7:30]) is not None


def test_removal_takes_all_names_and_shared_files_stay(store: ImageStore) -> None:
    one = _add(store, "one", ["base", "top"], "docker.io/library/a:1", "docker.io/library/a:2")
    two = _add(store, "two", ["base"], "docker.io/library/b:1")
    store.remove("a:2")
    assert store.find("a:1") is None
    assert _files(store) == {two.stack[0].name, _digest("base")[7:]}
    assert store.read_file(two, "/etc/passwd", 10) == b"root"
    store.remove(two.id)
    store.remove(one.id)
    assert _files(store) == set()


def test_equal_layers_share_a_filesystem(store: ImageStore) -> None:
    one = _add(store, "one", ["base"], "docker.io/library/a:1")
    two = _add(store, "two", ["base"], "docker.io/library/b:1")
    assert one.stack[0] == two.stack[0]
    store.remove("a:1")
    assert two.stack[0].exists()


def test_images_with_equal_first_layers_share_their_filesystems(store: ImageStore) -> None:
    one = _add_stack(store, "one", ["base", "more", "top"], 1, "docker.io/library/a:1")
    two = _add_stack(store, "two", ["base", "more", "other"], 1, "docker.io/library/b:1")
    assert len(one.stack) == 3 and one.stack[:2] == two.stack[:2] and one.stack[2] != two.stack[2]
    assert len(_files(store)) == 4 + 4
    store.remove("a:1")
    assert _files(store) == {
        *(path.name for path in two.stack),
        *(_digest(layer)[7:] for layer in ("base", "more", "other")),
    }
    store.hold(two.id, "c1")
    store.remove("b:1")
    assert all(path.exists() for path in two.stack)
    store.release("c1")
    assert _files(store) == set()


def test_accounts_come_from_the_topmost_filesystem_with_accounts(store: ImageStore) -> None:
    one = _add_stack(store, "one", ["base", "top"], 1, "docker.io/library/a:1")
    two = _add_stack(store, "two", ["base", "nobody", "top"], 1, "docker.io/library/b:1")
    assert store.read_file(one, "/etc/passwd", 10) == b"root"
    assert store.read_file(two, "/etc/passwd", 10) is None
    assert store.read_file(two, "/etc/group", 10) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_image_is_forgotten_with_any_of_its_filesystems(store: ImageStore, place: int) -> None:
    one = _add_stack(store, "one", ["base", "more", "top"], 1, "docker.io/library/a:1")
    two = _add_stack(store, "two", ["base", "other"], 1, "docker.io/library/b:1")
    one.stack[place].unlink()
    again = _reopened(store)
    try:
        left = {"docker.io/library/b:1": two} if place else {}
        assert {image.repo_tags[0]: image for image in again.images()} == left
        kept = {path.name for image in left.values() for path in image.stack}
        layers = ("base", "other") if left else ()
        assert _files(again) == kept | {_digest(layer)[7:] for layer in layers}
    finally:
        store.__dict__.update(again.__dict__)


def test_a_mark_of_damage_lasts_until_the_filesystem_is_built_again(store: ImageStore) -> None:
    one = _add_stack(store, "one", ["base", "top"], 1, "docker.io/library/a:1")
    two = _add_stack(store, "two", ["base", "other"], 1, "docker.io/library/b:1")
    base, top = store.stored(one)[1]
    store.mark_damaged([base])
    store.mark_damaged([replace(top, digest=_digest("built again since"))])
    # The rest of the file proves nothing: a kill may have come between a new file and its row.
    one.stack[0].write_text("of another size")
    again = _reopened(store)
    try:
        assert [again.has_filesystem(row.chain_id) for row in (base, top)] == [False, True]
        assert all(again.get(image.id).damaged for image in (one, two))
        # The image cannot be rebuilt from its documents.
        assert not again.usable(again.get(one.id))
        with again.files.work_file("fs") as work:
            work.write_text("rebuilt")
            again.add_filesystem(
                work,
                FilesystemRow(base.chain_id, "squashfs", work.stat().st_size, _digest("rebuilt"), ""),
                {},
            )
        assert again.has_filesystem(base.chain_id) and again.usable(again.get(one.id))
        assert not any(again.get(image.id).damaged for image in (one, two))
    finally:
        store.__dict__.update(again.__dict__)


@pytest.mark.parametrize("version", [2, 99])
def test_an_index_of_another_version_is_refused_and_unchanged(tmp_path: Path, version: int) -> None:
    settings = ImageSettings(tmp_path, unfinished_bytes=0)
    store = ImageStore(settings)
    store.open()
    store.close()
    with closing(sqlite3.connect(store.files.index)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = store.files.index.read_bytes()
    with pytest.raises(Broken, match=f"version {version}, .*pull the images again"):
        ImageStore(settings)
    assert store.files.index.read_bytes() == before


def test_a_malformed_index_is_reported(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "images.db").write_bytes(b"this is not a database, and never was one" * 100)
    with pytest.raises(Broken, match="images.db: file is not a database"):
        ImageStore(ImageSettings(tmp_path))


def test_a_full_index_is_told_and_goes_on(store: ImageStore) -> None:
    image = _add(store, "one", ["base"], "docker.io/library/a:1")
    db = store._db._db
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    row, _ = store.stored(image)
    with pytest.raises(Exhausted, match="images.db: the disk is full"):
        store.add_image(replace(row, id=_digest("two"), config=b'{"a": "%s"}' % (b"x" * 100_000)), ("b:1",))
    store.remove("a:1")
    assert store.images() == [] and _files(store) == set()


def test_held_image_stays_until_its_last_release(store: ImageStore) -> None:
    image = _add(store, "one", ["base"], "docker.io/library/a:1")
    store.hold(image.id, "c1")
    store.hold(image.id, "c2")
    store.remove("a:1")
    assert store.find(image.id) is None
    assert store.images() == []
    assert store.get(image.id).stack[0].exists()
    store.release("c1")
    store.release("unknown")
    assert image.stack[0].exists()
    again = _add(store, "one", ["base"], "docker.io/library/a:1")
    store.release("c2")
    assert store.resolve("a:1") == again
    store.remove("a:1")
    assert _files(store) == set()
    with pytest.raises(Missing):
        store.hold(image.id, "c3")
    with pytest.raises(Missing):
        store.get(image.id)


def test_owner_may_hold_several_images(store: ImageStore) -> None:
    one = _add(store, "one", ["base"], "docker.io/library/a:1")
    two = _add(store, "two", ["other"], "docker.io/library/b:1")
    for image_id in (one.id, two.id, two.id):
        store.hold(image_id, "c1")
    store.remove("a:1")
    store.remove("b:1")
    assert one.stack[0].exists() and two.stack[0].exists()
    store.release("c1")
    assert _files(store) == set()


def test_an_image_held_before_a_restart_is_swept_after_it(store: ImageStore) -> None:
    image = _add(store, "one", ["base"], "docker.io/library/a:1")
    store.hold(image.id, "c1")
    store.remove("a:1")
    again = _reopened(store)
    try:
        assert image.stack[0].exists()
        again.collect()
        assert _files(again) == set()
    finally:
        store.__dict__.update(again.__dict__)


def test_leftovers_of_a_killed_daemon_are_swept(store: ImageStore) -> None:
    kept = _add(store, "one", ["base"], "docker.io/library/a:1")
    (store.files.ingest / "half").write_text("x")
    (store.files.ingest / "dir").mkdir()
    _blob(store, "unnamed")
    with store.files.work_file("fs") as work:
        work.write_text("filesystem without an image")
        store.add_filesystem(
            work, FilesystemRow(_digest("chainlost"), "squashfs", work.stat().st_size, _digest("fs"), ""), {}
        )
    again = _reopened(store)
    try:
        assert _files(again) == {kept.stack[0].name, _digest("base")[7:]}
        assert list(again.files.ingest.iterdir()) == []
        assert again.resolve("a:1") == kept
    finally:
        store.__dict__.update(again.__dict__)


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_an_image_with_a_damaged_filesystem_is_forgotten(store: ImageStore, harm: str) -> None:
    image = _add(store, "one", ["base"], "docker.io/library/a:1")
    if harm == "gone":
        image.stack[0].unlink()
    else:
        image.stack[0].write_text("x")
    again = _reopened(store)
    try:
        assert again.images() == []
        assert _files(again) == set()
    finally:
        store.__dict__.update(again.__dict__)


def test_a_failed_pull_leaves_leased_filesystems(store: ImageStore) -> None:
    shared, own = _digest("shared"), _digest("own")
    with store.leasing([_digest("c1")], [shared]):
        with pytest.raises(RuntimeError), store.leasing([_digest("c2")], [shared, own]):
            _blob(store, "shared")
            _blob(store, "own")
            raise RuntimeError
        assert _files(store) == {shared[7:]}
    assert _files(store) == set()


def test_a_filesystem_of_a_pull_survives_the_end_of_another_pull(store: ImageStore) -> None:
    chain = _digest("c1")
    with store.leasing([chain], []):
        with store.files.work_file("fs") as work:
            work.write_text("fs")
            store.add_filesystem(
                work, FilesystemRow(chain, "squashfs", work.stat().st_size, _digest("fs"), ""), {}
            )
        with store.leasing([chain], []):
            pass
        assert store.has_filesystem(chain)
        assert store.files.fs_path(chain).exists()
    assert not store.has_filesystem(chain)


def test_a_single_process_opens_the_store(store: ImageStore) -> None:
    with pytest.raises(Refused, match="another process"):
        ImageStore(ImageSettings(store.files.root.parent))


def test_a_tag_is_taken_by_the_newer_image(store: ImageStore) -> None:
    _add(store, "one", ["a"], "docker.io/library/a:1", f"docker.io/library/a@{_digest('i1')}")
    two = _add(store, "two", ["b"], "docker.io/library/a:1")
    assert store.resolve("a:1") == two
    assert store.resolve(_digest("one")).repo_tags == ()
