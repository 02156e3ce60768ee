"""xenstored is lost and returns: connections, watches, contexts, marks; here over a xenstored in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from protect.toolstack.libxl import config
from protect.toolstack.libxl.deaths import Known
from protect.toolstack.libxl.xenstore import store as store_module
from protect.toolstack.libxl.xenstore.census import Census
from protect.toolstack.libxl.xenstore.store import AsyncStore
from protect.toolstack.libxl.xenstore.xenstored import Xenstored
from xenbind.domain import Info, Shutdown
from xenbind.errors import StoreError, XenError

MARK = '{"id": "z1"}'


class MemoryXenstored:
    """The daemon: its tree, and its liveness."""

    def __init__(self) -> None:
        self.tree: dict[str, bytes] = {}
        self.lives = True
        self.connections: list[MemoryConnection] = []

    def restart(self) -> MemoryXenstored:
        """A new daemon without data takes its place."""
        self.lives = False
        return MemoryXenstored()


class MemoryConnection:
    """xenbind.xenstore.Xenstore in memory."""

    daemon: MemoryXenstored
    gate: threading.Event | None = None

    def __init__(self) -> None:
        self.mine = type(self).daemon
        self.watches: dict[str, str] = {}
        self.closed = False
        self.fd, self.end = os.pipe()
        if not self.mine.lives:
            raise StoreError(errno.ECONNREFUSED, "connect to xenstore", "xenstored")
        self.mine.connections.append(self)

    def _check(self) -> None:
        assert not self.closed, "a connection is used after its end"
        if not self.mine.lives:
            raise StoreError(errno.EBADF, "read xenstore", "/")

    def read(self, path: str) -> bytes | None:
        if self.gate is not None:
            self.gate.wait(10)
        self._check()
        return self.mine.tree.get(path)

    def write(self, path: str, value: bytes) -> None:
        self._check()
        self.mine.tree[path] = value

    def list(self, path: str) -> list[str]:
        self._check()
        return []

    def watch(self, path: str, token: str) -> None:
        self._check()
        self.watches[token] = path

    def unwatch(self, path: str, token: str) -> None:
        self._check()
        del self.watches[token]

    def next_watch(self) -> tuple[str, str] | None:
        return None

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        os.close(self.fd)
        os.close(self.end)


class FakeWorkers:
    """Answers ``domains``; remembers news of xenstored."""

    def __init__(self) -> None:
        self.domains: list[Info] = []
        self.said: list[str] = []

    def hold(self) -> None:
        self.said.append("hold")

    def renew(self) -> None:
        self.said.append("renew")

    async def ask(self, function: object, *args: object) -> list[Info]:
        return list(self.domains)


class FakeRegistry:
    """Known domains by number; ``failing``: how often ``renew`` fails."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.failing = 0
        self.renewed = 0
        self.checked = 0

    async def renew(self) -> None:
        if self.failing:
            self.failing -= 1
            raise XenError("libxl_ctx_alloc", -3, "", "not yet")
        self.renewed += 1
        for known in self.known.values():
            known.mark = ""

    def check(self) -> None:
        self.checked += 1

    def get(self, domid: int) -> Known | None:
        return self.known.get(domid)

    def add(self, domid: int, uuid: UUID, name: str, mark: str = "") -> None:
        known = self.known.setdefault(domid, Known(domid, uuid, name, 1, mark))
        known.mark = known.mark or mark

    def uuids(self) -> set[UUID]:
        return {known.uuid for known in self.known.values()}

    def vanished(self, missing: set[UUID]) -> list[Known]:
        return [known for known in self.known.values() if known.uuid in missing]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> MemoryXenstored:
    daemon = MemoryXenstored()
    monkeypatch.setattr(MemoryConnection, "daemon", daemon, raising=False)
    monkeypatch.setattr(store_module, "Xenstore", MemoryConnection)
    return daemon


@pytest.fixture
async def store(daemon: MemoryXenstored) -> AsyncIterator[AsyncStore]:
    store = AsyncStore()
    yield store
    store.close()


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def xenstored(store: AsyncStore, workers: FakeWorkers, registry: FakeRegistry) -> Xenstored:
    return Xenstored(store, workers, registry)  # type: ignore[arg-type]


def info(domid: int, name: str = "", uuid: UUID | None = None, *, dying: bool = False) -> Info:
    return Info(domid, uuid or uuid4(), name, False, False, dying, Shutdown.UNKNOWN, 1024, 2048, 1, 0)


async def test_a_loss_is_said_and_a_return_renews_everything(
    daemon: MemoryXenstored, xenstored: Xenstored, workers: FakeWorkers, registry: FakeRegistry
) -> None:
    await xenstored.look()
    assert (xenstored.notices(), workers.said, registry.checked) == ((), [], 1)
    daemon.lives = False
    for _ in range(3):
        await xenstored.look()
        assert "does not answer" in xenstored.notices()[0]
    assert (workers.said, registry.renewed, registry.checked) == (["hold"], 0, 1)
    MemoryConnection.daemon = daemon.restart()
    await xenstored.look()
    assert (workers.said, registry.renewed) == (["hold", "renew"], 1)
    assert "was restarted" in xenstored.notices()[0]
    await xenstored.look()
    assert registry.renewed == 1 and registry.checked == 3


async def test_restart_of_xenstored_between_looks_is_noticed(
    daemon: MemoryXenstored, xenstored: Xenstored, registry: FakeRegistry
) -> None:
    MemoryConnection.daemon = daemon.restart()
    await xenstored.look()
    assert registry.renewed == 1 and "was restarted" in xenstored.notices()[0]


async def test_a_failed_renewal_is_repeated(
    daemon: MemoryXenstored, xenstored: Xenstored, registry: FakeRegistry
) -> None:
    registry.failing = 2
    MemoryConnection.daemon = daemon.restart()
    for _ in range(2):
        await xenstored.look()
        assert "does not answer" in xenstored.notices()[0] and registry.renewed == 0
    await xenstored.look()
    assert registry.renewed == 1 and "was restarted" in xenstored.notices()[0]


async def test_watches_continue_with_the_next_xenstored(daemon: MemoryXenstored, store: AsyncStore) -> None:
    async with store.watch("/a") as changed:
        changed.clear()
        MemoryConnection.daemon = daemon.restart()
        await store.reconnect()
        assert changed.is_set(), "whoever waits has to look again"
        (now,) = MemoryConnection.daemon.connections
        assert list(now.watches.values()) == ["/a"]
    assert now.watches == {}
    assert [connection.closed for connection in daemon.connections] == [True]


async def test_an_end_of_a_watch_does_not_hide_why(daemon: MemoryXenstored, store: AsyncStore) -> None:
    with pytest.raises(KeyError):
        async with store.watch("/a"):
            daemon.lives = False
            raise KeyError


async def test_a_connection_in_use_is_not_closed_under_its_thread(
    daemon: MemoryXenstored, store: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(daemon.connections[0], "gate", gate, raising=False)
    reading = asyncio.create_task(store.read("/a"))
    await asyncio.sleep(0.05)
    await store.reconnect()
    assert not daemon.connections[0].closed
    gate.set()
    await reading
    assert daemon.connections[0].closed


async def test_a_census_knows_ours_by_their_marks(
    daemon: MemoryXenstored, store: AsyncStore, workers: FakeWorkers, registry: FakeRegistry
) -> None:
    census = Census(workers, store, registry)  # type: ignore[arg-type]
    ours, theirs = info(1, "web"), info(2, "database")
    named = UUID(int=0xABCD << 96)
    workers.domains = [info(0, "Domain-0"), ours, theirs, info(3, "old.0000abcd", named), info(4, dying=True)]
    daemon.tree["/local/domain/1/xenpod"] = MARK.encode()
    daemon.tree["/local/domain/2/xenpod"] = b"x" * 4000
    listed, vanished = await census.take()
    assert [(one.id, one.mark) for one in listed] == [(1, MARK), (2, ""), (3, "")]
    assert registry.known.keys() == {1, 3} and not vanished
    workers.domains = [theirs]
    _, vanished = await census.take()
    assert {known.domid for known in vanished} == {1, 3}


async def test_a_known_domain_keeps_its_mark_while_there_is_no_xenstored(
    daemon: MemoryXenstored, store: AsyncStore, workers: FakeWorkers, registry: FakeRegistry
) -> None:
    census = Census(workers, store, registry)  # type: ignore[arg-type]
    ours = info(1, "web")
    workers.domains, daemon.tree["/local/domain/1/xenpod"] = [ours], MARK.encode()
    await census.take()
    daemon.lives = False
    workers.domains = [info(1, "", ours.uuid), info(2)]  # libxl has no names either
    listed, vanished = await census.take()
    assert [(one.name, one.mark) for one in listed] == [("web", MARK), ("", "")] and not vanished


async def test_a_claim_writes_only_lost_nodes(
    daemon: MemoryXenstored, store: AsyncStore, workers: FakeWorkers, registry: FakeRegistry
) -> None:
    census = Census(workers, store, registry)  # type: ignore[arg-type]
    bare, whole = info(1), info(2, "kept")
    workers.domains, daemon.tree["/local/domain/2/xenpod"] = [bare, whole], b"kept mark"
    claimed = await census.claim(bare.uuid, "web", MARK)
    assert claimed is not None and (claimed.name, claimed.mark) == ("web", MARK)
    assert daemon.tree["/local/domain/1/name"] == b"web"
    assert daemon.tree["/local/domain/1/xenpod"] == MARK.encode()
    again = await census.claim(whole.uuid, "other", MARK)
    assert again is not None and (again.name, again.mark) == ("kept", "kept mark")
    assert "/local/domain/2/name" not in daemon.tree
    assert await census.claim(uuid4(), "web", MARK) is None
    assert registry.known.keys() == {1, 2} and config.MARK == "xenpod"
