"""The store: what is committed survives a SIGKILL, and a transaction is whole or not at all."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, Refused
from protect.model.toolstack import Mode
from protect.model.workload import Workload, WorkloadDisk, WorkloadExit, WorkloadState
from protect.model.zone import Zone, ZoneSpec, ZoneState
from protect.state.store import Intent, SqliteStore

ROOT = Path(__file__).parents[4]


def a_zone(zone_id: str = "z1", number: int = 1) -> Zone:
    from uuid import UUID

    return Zone(ZoneSpec(zone_id, "", "", "default", 1, 1, Mode.PV), UUID(int=number), ZoneState.RUNNING, 1)


def a_workload(workload_id: str = "w1", zone_id: str = "z1") -> Workload:
    return Workload(workload_id, zone_id, WorkloadState.RUNNING, 1, (WorkloadDisk("xvda", (64, 2**40)),))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "db")


def test_intents_come_and_go_with_their_objects(store: SqliteStore, tmp_path: Path) -> None:
    store.save_zone(a_zone(), Intent("zone.connect", "spliced", {"netns": "/x"}))
    store.save_workload(a_workload(), Intent("workload.create"))
    store.update_workload(a_workload().exited(WorkloadExit(1, False, 2)))
    saved = SqliteStore(tmp_path / "db").load()
    assert saved.zone_intents == {"z1": Intent("zone.connect", "spliced", {"netns": "/x"})}
    assert saved.workload_intents == {"w1": Intent("workload.create")}
    assert saved.workloads[0].exit_code == 1
    store.save_zone(a_zone(), None)
    store.save_workload(a_workload(), None)
    assert not store.load().zone_intents and not store.load().workload_intents


def test_forgetting_a_zone_forgets_its_workloads(store: SqliteStore) -> None:
    store.save_zone(a_zone(), Intent("zone.destroy"))
    store.save_zone(a_zone("z2", 2), None)
    store.save_workload(a_workload(), Intent("workload.create"))
    store.save_workload(a_workload("w2", "z2"), Intent("workload.create"))
    store.forget_zone("z1")
    saved = store.load()
    assert [zone.id for zone in saved.zones] == ["z2"]
    assert [workload.id for workload in saved.workloads] == ["w2"]
    assert not saved.zone_intents and set(saved.workload_intents) == {"w2"}


def test_a_workload_without_its_zone_is_refused_whole(store: SqliteStore) -> None:
    with pytest.raises(Broken, match="FOREIGN KEY"):
        store.save_workload(a_workload(), Intent("workload.create"))
    assert not store.load().workload_intents


def test_after_a_failed_transaction_the_store_works(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        store.save_workload(a_workload(), Intent("workload.create"))
    store.save_zone(a_zone(), None)
    store.save_workload(a_workload(), None)
    saved = SqliteStore(tmp_path / "db").load()
    assert [workload.id for workload in saved.workloads] == ["w1"]
    assert not saved.workload_intents


def test_a_full_disk_is_exhausted(store: SqliteStore) -> None:
    store.save_zone(a_zone(), None)
    store._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(Exhausted, match="full.*free space"):
        for number in range(2, 2000):
            store.save_zone(a_zone(f"z{number}", number), Intent("x"))
    assert len(store.load().zones) == len(store.load().zone_intents) + 1


def test_another_schema_is_refused(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "db").close()
    with sqlite3.connect(tmp_path / "db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(Refused, match="version 99, .*use the protectd that wrote it"):
        SqliteStore(tmp_path / "db")


def test_a_damaged_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"this is not a database, but long enough to look at" * 100)
    with pytest.raises(Broken, match="not a database"):
        SqliteStore(tmp_path / "db")


def test_the_wal_is_copied_off_and_used_again(store: SqliteStore) -> None:
    for number in range(1, 100):
        store.save_zone(a_zone(f"z{number}", number), None)
    grown = store.wal_bytes()
    assert grown > 500_000
    store.checkpoint()
    for number in range(1, 30):
        store.save_zone(a_zone(f"z{number}", number).to(ZoneState.DESTROYING), None)
    assert store.wal_bytes() == grown


def test_everything_committed_survives_sigkill(tmp_path: Path) -> None:
    writer = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.unit.protect.state.test_store import a_zone
        from protect.state.store import Intent, SqliteStore
        store = SqliteStore(Path(sys.argv[1]))
        for number in range(1, 10_000):
            store.save_zone(a_zone(f"z{number}", number), Intent("x"))
            print(number, flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(tmp_path / "db")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 300:
            process.send_signal(signal.SIGKILL)
            break
    told = max([300, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.wait()
    saved = SqliteStore(tmp_path / "db").load()
    assert len(saved.zones) in (told, told + 1)
    assert len(saved.zones) == len(saved.zone_intents)
