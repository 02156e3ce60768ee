"""The control groups of the fake toolstack, on hosts of every kind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest

from daemonkit.faults import Broken, Unsupported
from protect.model.domain.shares import CpuShares
from protect.model.toolstack import DomainSpec
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.hierarchies import Hierarchy, find_hierarchies
from protect.toolstack.fake.resizing.limits import CgroupLimits

V2 = "30 20 0:25 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
UNIT = "system.slice/protectd.service"
V1 = "{n} 20 0:3{n} / {root}/{name} rw,nosuid shared:9 - cgroup cgroup rw,{options}\n"


def proc(folder: Path, mounts: str, own: str = "0::/\n") -> Path:
    """A /proc/self."""
    folder.mkdir(exist_ok=True)
    (folder / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts)
    (folder / "cgroup").write_text(own)
    return folder


def test_pure_v2_has_a_single_hierarchy(tmp_path: Path) -> None:
    found = find_hierarchies(proc(tmp_path / "self", V2.format(root="/sys/fs/cgroup")))
    assert found == (Hierarchy(Path("/sys/fs/cgroup"), frozenset(), unified=True),)


def test_of_a_hybrid_only_the_v1_trees_each_once(tmp_path: Path) -> None:
    names = [
        ("memory", "memory"),
        ("cpu,cpuacct", "cpu,cpuacct"),
        ("systemd", "name=systemd"),
        ("again", "memory"),
    ]
    mounts = V2.format(root="/sys/fs/cgroup/unified") + "".join(
        V1.format(n=n, root="/sys/fs/cgroup", name=name, options=options)
        for n, (name, options) in enumerate(names)
    )
    found = find_hierarchies(proc(tmp_path / "self", mounts))
    assert [(str(tree.base), set(tree.controllers), tree.unified) for tree in found] == [
        ("/sys/fs/cgroup/memory", {"memory"}, False),
        ("/sys/fs/cgroup/cpu,cpuacct", {"cpu", "cpuacct"}, False),
        ("/sys/fs/cgroup/systemd", {"name=systemd"}, False),
    ]


def test_v2_beside_v1_without_memory_is_found(tmp_path: Path) -> None:
    mounts = V1.format(n=1, root="/v1", name="net_cls", options="net_cls") + V2.format(root="/v2")
    assert [tree.base for tree in find_hierarchies(proc(tmp_path / "self", mounts))] == [Path("/v2")]


def test_host_without_a_memory_controller_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="memory"):
        find_hierarchies(proc(tmp_path / "self", V1.format(n=1, root="/x", name="cpu", options="cpu")))


@pytest.mark.parametrize(
    ("own", "delegated", "base"),
    [
        (
            "/system.slice/protectd.service/main",
            "system.slice/protectd.service",
            "system.slice/protectd.service",
        ),
        # the daemon itself is in the group: a group cannot have both members and controllers for children
        ("/system.slice/protectd.service", UNIT, "."),
        ("/system.slice/protectd.service/main", None, "."),
        ("/", None, "."),
    ],
)
def test_base_is_the_delegated_group_above_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, delegated: str | None, base: str
) -> None:
    root = tmp_path / "cgroup"

    def getxattr(path: Path, name: str) -> bytes:
        if name == "trusted.delegate" and delegated and Path(path) == root / delegated:
            return b"1"
        raise OSError

    monkeypatch.setattr(os, "getxattr", getxattr)
    found = find_hierarchies(proc(tmp_path / "self", V2.format(root=root), f"0::{own}\n"))
    assert [tree.base for tree in found] == [root / base]


@pytest.mark.parametrize(
    ("attribute", "value", "taken"),
    [("trusted.delegate", b"1", True), ("user.delegate", b"1", True), ("user.delegate", b"0", False)],
)
def test_nearest_delegated_group_is_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, value: bytes, taken: bool
) -> None:
    """The nearest delegated group above the daemon's own."""
    root = tmp_path / "cgroup"

    def getxattr(path: Path, name: str) -> bytes:
        if name == attribute and Path(path) in (root / "a", root / "a/b"):
            return value
        raise OSError

    monkeypatch.setattr(os, "getxattr", getxattr)
    found = find_hierarchies(proc(tmp_path / "self", V2.format(root=root), "1:x:/y\n0::/a/b/c/main\n"))
    assert [tree.base for tree in found] == [root / "a/b" if taken else root]


def test_limits_are_written_on_v2(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "xenpod-i"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (folder / "cgroup.subtree_control").write_text("memory\n")
    groups = Cgroups((Hierarchy(tmp_path, frozenset(), unified=True),), "i")
    assert groups.create("d", CgroupLimits(64 << 20, 2, 100)) == [tmp_path / "xenpod-i/d"]
    assert (tmp_path / "xenpod-i/cgroup.subtree_control").read_text() == "+cpuset +cpu +io +pids"
    files = {
        name: (tmp_path / "xenpod-i/d" / name).read_text() for name in ("memory.max", "cpu.max", "pids.max")
    }
    assert files == {"memory.max": str(64 << 20), "cpu.max": "200000 100000", "pids.max": "100"}
    (tmp_path / "xenpod-i/d/cpu.stat").write_text("user_usec 1\nusage_usec 1500\n")
    assert groups.cpu_time_ns("d") == 1_500_000
    assert groups.cpu_time_ns("gone") == 0 and groups.domains() == {"d"}


def spec(vcpus: int) -> DomainSpec:
    return DomainSpec(UUID(int=1), "d", 64 << 20, vcpus)


@pytest.mark.parametrize(
    ("shares", "vcpus", "v1", "v2"),
    [
        (CpuShares(), 2, ("1024", "200000"), ("100", "200000 100000")),
        (CpuShares(512, 30), 2, ("2048", "30000"), ("200", "30000 100000")),
        (CpuShares(1, 200), 2, ("4", "200000"), ("1", "200000 100000")),
        (CpuShares(65_535, 1), 1, ("262140", "1000"), ("10000", "1000 100000")),
    ],
)
def test_shares_are_written_to_both_cgroup_versions(
    tmp_path: Path, shares: CpuShares, vcpus: int, v1: tuple[str, str], v2: tuple[str, str]
) -> None:
    one, two = (tmp_path / name / f"xenpod-i/{UUID(int=1)}" for name in ("one", "two"))
    for group in (one, two):
        group.mkdir(parents=True)
    trees = (
        Hierarchy(tmp_path / "one", frozenset({"cpu", "cpuacct"}), unified=False),
        Hierarchy(tmp_path / "two", frozenset(), unified=True),
    )
    Cgroups(trees, "i").share(spec(vcpus), shares)
    assert ((one / "cpu.shares").read_text(), (one / "cpu.cfs_quota_us").read_text()) == v1
    assert ((two / "cpu.weight").read_text(), (two / "cpu.max").read_text()) == v2
    assert len(list(one.iterdir())) == len(list(two.iterdir())) == 2


def test_controllers_are_enabled_once(tmp_path: Path) -> None:
    """Enabled controllers are not written again."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "xenpod-i").mkdir()
    (tmp_path / "xenpod-i/cgroup.controllers").write_text("cpu memory pids\n")
    groups = Cgroups((Hierarchy(tmp_path, frozenset(), unified=True),), "i")
    for _ in range(2):
        groups.create("d", CgroupLimits(64 << 20, 2, 100))
        (tmp_path / "xenpod-i/cgroup.subtree_control").write_text("cpu memory pids\n")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory pids\n"
    assert (tmp_path / "xenpod-i/cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_limits_are_written_on_v1(tmp_path: Path) -> None:
    """A group under each controller, with the controller's own limits."""
    names = ("memory", "cpu,cpuacct", "pids", "name=systemd")
    trees = tuple(Hierarchy(tmp_path / name, frozenset(name.split(",")), unified=False) for name in names)
    for tree in trees:
        tree.base.mkdir()
    groups = Cgroups(trees, "i")
    made = groups.create("d", CgroupLimits(64 << 20, 3, 100))
    assert made == groups.groups("d") == [tmp_path / name / "xenpod-i/d" for name in names]
    assert {
        str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*.*") if file.is_file()
    } == {
        "memory/xenpod-i/d/memory.limit_in_bytes": str(64 << 20),
        "cpu,cpuacct/xenpod-i/d/cpu.cfs_quota_us": "300000",
        "pids/xenpod-i/d/pids.max": "100",
    }
    assert groups.cpu_time_ns("d") == 0
    (tmp_path / "cpu,cpuacct/xenpod-i/d/cpuacct.usage").write_text("1234\n")
    assert groups.cpu_time_ns("d") == 1234


def test_a_v1_cpuset_equals_its_parent(tmp_path: Path) -> None:
    base = tmp_path / "cpuset"
    (base / "xenpod-i/d").mkdir(parents=True)
    (base / "cpuset.cpus").write_text("0-3\n")
    (base / "cpuset.mems").write_text("0\n")
    (base / "xenpod-i/cpuset.cpus").write_text("1\n")
    (base / "xenpod-i/cpuset.mems").write_text("\n")
    groups = Cgroups((Hierarchy(base, frozenset({"cpuset"}), unified=False),), "i")
    groups.create("d", CgroupLimits(1, 1, 1))
    made = [
        (base / "xenpod-i" / name).read_text() for name in ("cpuset.cpus", "d/cpuset.cpus", "d/cpuset.mems")
    ]
    assert made == ["1\n", "1", "0"]
    assert (base / "xenpod-i/cgroup.clone_children").read_text() == "1"
    assert not (base / "cgroup.clone_children").exists(), "the host's own"


async def test_empty_groups_are_removed(tmp_path: Path) -> None:
    """Lower groups go first; foreign groups stay."""
    trees = tuple(Hierarchy(tmp_path / name, frozenset({name}), unified=False) for name in ("a", "b"))
    groups = Cgroups(trees, "i")
    assert groups.domains() == set()
    groups.remove_instance()
    (tmp_path / "a/xenpod-i/d/inner/most").mkdir(parents=True)
    (tmp_path / "b/xenpod-i/e").mkdir(parents=True)
    (tmp_path / "b/xenpod-i/cgroup.procs").touch()
    assert groups.domains() == {"d", "e"}
    await groups.remove("d")
    await groups.remove("d")
    assert groups.domains() == {"e"}
    (tmp_path / "b/xenpod-i/cgroup.procs").unlink()
    groups.remove_instance()
    assert not (tmp_path / "a/xenpod-i").exists() and (tmp_path / "b/xenpod-i/e").exists()


def test_a_v2_group_without_the_controllers_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids\n")
    with pytest.raises(Unsupported, match="cpu, memory"):
        Cgroups((Hierarchy(tmp_path, frozenset(), unified=True),), "i").create("d", CgroupLimits(1, 1, 1))


def test_a_refused_limit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "xenpod-i/d/memory.limit_in_bytes").mkdir(parents=True)
    with pytest.raises(Broken, match="memory.limit_in_bytes"):
        Cgroups((Hierarchy(tmp_path, frozenset({"memory"}), unified=False),), "i").create(
            "d", CgroupLimits(1, 1, 1)
        )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_remaining_processes_of_a_group_are_ended(tmp_path: Path) -> None:
    """Also in groups that the zone made below its own."""
    groups = Cgroups(find_hierarchies(), f"test-{tmp_path.name[-8:]}-{os.getpid()}")
    try:
        made = await asyncio.to_thread(groups.create, "d", CgroupLimits(64 << 20, 1, 100))
        inner = made[0] / "workloads" / "x"
        inner.mkdir(parents=True)
        sleepers = [await asyncio.create_subprocess_exec("sleep", "100") for _ in range(3)]
        for group, sleeper in zip((made[0], made[-1], inner), sleepers, strict=True):
            (group / "cgroup.procs").write_text(str(sleeper.pid))
        await groups.remove("d")
        assert [await sleeper.wait() for sleeper in sleepers] == [-9] * 3
        assert groups.domains() == set()
        await groups.remove("d")
    finally:
        groups.remove_instance()
    assert not any(path.exists() for path in (group.parent for group in groups.groups("d")))
