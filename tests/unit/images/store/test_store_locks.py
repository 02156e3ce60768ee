"""Two threads change the image store at the same moment: the changes are in order, and none is lost.

A thread is held in the middle of its change until the other thread has made its change, or has had the time.
If a lock protects the change, the other change comes after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daemonkit.faults import Missing
from images.image_settings import ImageSettings
from images.store.db import FilesystemRow, ImageDb, ImageRow
from images.store.store import ImageStore
from tests.support.images.images import facts_of

CHAIN = "sha256:" + "c" * 64
_LONGEST = 0.3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    made = ImageStore(ImageSettings(tmp_path))
    made.open()
    yield made
    made.close()


def _row(number: int, chain_id: str = CHAIN) -> ImageRow:
    return ImageRow(
        f"sha256:{number:064x}", chain_id, "sha256:" + "d" * 64, b"{}", b"{}", (), 1, facts=facts_of()
    )


def _filesystem(store: ImageStore, chain_id: str = CHAIN) -> None:
    with store.files.work_file("fs") as work:
        work.write_bytes(b"filesystem")
        store.add_filesystem(work, FilesystemRow(chain_id, "squashfs", work.stat().st_size, "", ""), {})


def _during(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    step: str,
    change: Callable[[], Any],
    other: Callable[[], Any],
) -> tuple[Future[Any], Future[Any]]:
    """Make ``other`` begin when ``change`` is at the end of ``step``, a method of owner."""
    at, second = threading.Event(), threading.Event()
    method, lock = getattr(owner, step), threading.Lock()

    def held(*args: Any) -> Any:
        result = method(*args)
        with lock:
            first = not at.is_set()
            at.set()
        if first:
            second.wait(_LONGEST)
        return result

    monkeypatch.setattr(owner, step, held)

    def run_other() -> Any:
        assert at.wait(60)
        try:
            return other()
        finally:
            second.set()

    with ThreadPoolExecutor(2) as threads:
        return threads.submit(change), threads.submit(run_other)


def test_a_hold_during_a_removal_finds_nothing_to_hold(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filesystem(store)
    image = store.add_image(_row(1), ("docker.io/library/a:1",))
    removed, held = _during(
        monkeypatch,
        store._db,
        "unname",
        lambda: store.remove(image.id),
        lambda: store.hold(image.id, "container"),
    )
    removed.result()
    with pytest.raises(Missing):
        held.result()
    assert store.files.named() == []


def test_two_images_made_at_once_both_exist(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The single read of the index must not replace later additions of the other thread."""
    _filesystem(store)
    for future in _during(
        monkeypatch,
        store._db,
        "filesystems",
        lambda: store.add_image(_row(1), ("docker.io/library/a:1",)),
        lambda: store.add_image(_row(2), ("docker.io/library/b:1",)),
    ):
        future.result()
    assert len(store.images()) == 2


def test_a_filesystem_and_an_image_made_at_once_both_exist(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filesystem(store)
    other = "sha256:" + "e" * 64
    for future in _during(
        monkeypatch,
        store._db,
        "filesystems",
        lambda: _filesystem(store, other),
        lambda: store.add_image(_row(1), ("docker.io/library/a:1",)),
    ):
        future.result()
    assert store.has_filesystem(other) and len(store.images()) == 1


def test_lease_during_a_sweep_waits_until_the_sweep_ends(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull with a lease may rely on the found filesystems."""
    store.lease([CHAIN], [])
    _filesystem(store)

    def lease() -> bool:
        store.lease([CHAIN], [])
        return store.has_filesystem(CHAIN)

    ended, leased = _during(
        monkeypatch, store._db, "drop_filesystems", lambda: store.end_lease([CHAIN], []), lease
    )
    ended.result()
    assert leased.result() is False
    assert store.files.named() == []


def test_an_image_added_during_a_release_stays(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release lets go of an image that was removed, and reads the index anew."""
    _filesystem(store)
    image = store.add_image(_row(1), ("docker.io/library/a:1",))
    store.hold(image.id, "container")
    store.remove(image.id)
    store.lease([CHAIN], [])
    for future in _during(
        monkeypatch,
        store._db,
        "filesystems",
        lambda: store.release("container"),
        lambda: store.add_image(_row(2), ("docker.io/library/b:1",)),
    ):
        future.result()
    assert [one.id for one in store.images()] == [_row(2).id]


class _Slow:
    """A connection that holds transactions open until another thread has tried to begin a transaction."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.begun, self.second = threading.Event(), threading.Event()

    def execute(self, statement: str, *more: Any) -> Any:
        if statement != "BEGIN IMMEDIATE":
            return self._database.execute(statement, *more)
        if self.begun.is_set():
            try:
                return self._database.execute(statement, *more)
            finally:
                self.second.set()
        result = self._database.execute(statement, *more)
        self.begun.set()
        self.second.wait(_LONGEST)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def test_two_transactions_of_the_index_do_not_mix(tmp_path: Path) -> None:
    database = ImageDb(tmp_path / "images.db")
    database.add_filesystem(FilesystemRow(CHAIN, "squashfs", 1), {})
    database._db = slow = _Slow(database._db)  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(database.add_image, _row(1), ("a",))
        assert slow.begun.wait(60)
        second = threads.submit(database.add_image, _row(2), ("b",))
    first.result()
    second.result()
    assert [name for name, _ in database.names()] == ["a", "b"]
    database.close()
