"""Values and tables: every transition outside the table is refused."""

from __future__ import annotations

import itertools
import uuid

import pytest

from daemonkit.faults import Exhausted, Invalid, Refused
from protect.config import Profile, ProtectdConfig
from protect.model import checks
from protect.model import workload as w
from protect.model import zone as z
from protect.model.process import Streams
from protect.model.toolstack import Mode
from protect.state import records
from protect.state.ledger import Ledger

MIB = 1 << 20


def a_zone(state: z.ZoneState = z.ZoneState.RUNNING) -> z.Zone:
    sysctls = {"net.core.somaxconn": "5"}
    spec = z.ZoneSpec("z1", "web", "host", "default", 256 * MIB, 2, Mode.PVH, 1, sysctls=sysctls)
    return z.Zone(spec, uuid.uuid4(), state, 7)


def a_workload(state: w.WorkloadState = w.WorkloadState.RUNNING) -> w.Workload:
    return w.Workload(
        "w1",
        "z1",
        state,
        7,
        (w.WorkloadDisk("xvda", (1, 2)), w.WorkloadDisk("xvdb", (1, 3))),
        "/log",
        True,
        True,
        Streams(1, 2, 3),
        44,
    )


@pytest.mark.parametrize(("old", "new"), list(itertools.product(z.ZoneState, z.ZoneState)))
def test_zone_transitions_outside_the_table_are_refused(old: z.ZoneState, new: z.ZoneState) -> None:
    if new in z.NEXT[old]:
        assert a_zone(old).to(new).state is new
    else:
        with pytest.raises(Refused, match=f"{old.value} and cannot be {new.value}"):
            a_zone(old).to(new)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(w.WorkloadState, w.WorkloadState)))
def test_workload_transitions_outside_the_table_are_refused(
    old: w.WorkloadState, new: w.WorkloadState
) -> None:
    if new in w.NEXT[old]:
        assert a_workload(old).to(new).state is new
    else:
        with pytest.raises(Refused, match=f"{old.value} and cannot be {new.value}"):
            a_workload(old).to(new)


def test_an_exit_is_final() -> None:
    ended = a_workload().exited(w.WorkloadExit(3, oom_killed=False, at_ns=9))
    assert (ended.exit_code, ended.reason, ended.finished_at_ns) == (3, w.Reason.ERROR, 9)
    with pytest.raises(Refused):
        ended.exited(w.WorkloadExit(4, oom_killed=False, at_ns=10))


@pytest.mark.parametrize(
    ("code", "oom", "reason"),
    [(0, False, w.Reason.COMPLETED), (1, False, w.Reason.ERROR), (137, True, w.Reason.OOM_KILLED)],
)
def test_reason_follows_exit_code_and_oom_kill(code: int, oom: bool, reason: w.Reason) -> None:
    assert w.WorkloadExit(code, oom, 0).reason is reason


def test_records_keep_everything() -> None:
    zone = a_zone(z.ZoneState.DEAD)
    assert records.zone(records.of_zone(zone)) == zone
    workload = a_workload().exited(w.WorkloadExit(137, oom_killed=True, at_ns=9))
    assert records.workload(records.of_workload(workload)) == workload


def test_ledger_refuses_with_the_numbers() -> None:
    ledger = Ledger(512 * MIB)
    ledger.admit("a", 300 * MIB)
    with pytest.raises(Exhausted, match="needs 256 MiB, free are 212 MiB of 512 MiB .1 zones and 0 res"):
        ledger.admit("b", 256 * MIB)
    ledger.release("a")
    ledger.release("a")
    ledger.admit("b", 512 * MIB)
    assert (ledger.reserved_bytes, ledger.free_bytes) == (512 * MIB, 0)


def test_ledger_adopts_zones_beyond_its_capacity() -> None:
    ledger = Ledger(100)
    ledger.adopt("a", 150)
    assert ledger.free_bytes == 0
    with pytest.raises(Exhausted):
        ledger.admit("b", 1)


@pytest.mark.parametrize("good", ["a", "0", "a-b", "x" * 64])
def test_good_ids_are_accepted(good: str) -> None:
    assert checks.identifier("t", "zone", good) == good


@pytest.mark.parametrize("bad", ["", "A", "-a", "a_b", "a/b", "..", "x" * 65, "a\n", "é"])
def test_bad_ids_are_refused(bad: str) -> None:
    with pytest.raises(Invalid):
        checks.identifier("t", "zone", bad)


@pytest.mark.parametrize("bad", ["", "x", "a/b", "/a/../b", "/..", "/a\0", "/" + "x" * 5000])
def test_bad_paths_are_refused(bad: str) -> None:
    with pytest.raises(Invalid):
        checks.path("t", "log", bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"vm.swappiness": "1"},
        {"kernel.panic": "1"},
        {"net": "1"},
        {"net.core.somaxconn": "1\n2"},
        {"net..x": "1"},
        {"net.core/../../x": "1"},
        {"net.core.somaxconn": "1" * 2000},
        {f"net.core.x{n}": "1" for n in range(67)},
    ],
)
def test_bad_sysctls_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        checks.sysctls("t", bad)


@pytest.mark.parametrize("bad", [b"", b"[]", b"{", b"1", b"\xff", b"[" * 100_000, b'{"a": 1}' + b" " * 100])
def test_bad_json_is_refused(bad: bytes) -> None:
    with pytest.raises(Invalid):
        checks.json_object("t", "config", bad, 100)


def test_console_lines_are_plain_and_bounded() -> None:
    untrusted = b"first\r\n\x1b[31mred\x1b[0m \x00\x07bell\n\xff\xfe\n" + "\u202eevil".encode() + b"\n"
    assert checks.plain_lines(untrusted, 3) == ["red bell", "\ufffd\ufffd", "evil"]
    assert checks.plain_lines(b"", 3) == []


def test_profiles_and_their_limits() -> None:
    config = ProtectdConfig(profiles={"big": Profile(memory=1024 * MIB)})  # type: ignore[arg-type]
    assert config.profile("").memory == 256 * MIB
    assert config.profile("big").memory == 1024 * MIB
    with pytest.raises(Invalid, match="there are: big, default"):
        config.profile("small")
    with pytest.raises(ValueError, match="memory_min"):
        Profile(memory=1 * MIB)  # type: ignore[arg-type]
