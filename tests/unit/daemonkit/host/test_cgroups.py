"""A daemon's own control groups, from the kernel's files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from daemonkit.host import cgroups, children

V1 = "40 30 0:35 / {root}/{name} rw,relatime - cgroup cgroup rw,{name}\n"
V2 = "41 30 0:36 / {root}/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "found"),
    [
        (V2, "0::/system.slice/x.service\n", ["unified/system.slice/x.service"]),
        (V2, "0::/\n", ["unified"]),
        (
            V1.replace("{name}", "cpu,cpuacct") + V1.replace("{name}", "memory") + V2,
            "3:cpu,cpuacct:/a\n2:memory:/b\n1:name=systemd:/c\n0::/d:e\n",
            ["cpu,cpuacct/a", "memory/b", "unified/d:e"],
        ),
        (V1.replace("{name}", "name=systemd"), "1:name=systemd:/c\n0::/\n", ["name=systemd/c"]),
        ("22 1 8:1 / / rw - ext4 /dev/sda rw\n", "0::/\n", []),
    ],
)
def test_the_groups_of_a_process_are_found(
    tmp_path: Path, mountinfo: str, cgroup: str, found: list[str]
) -> None:
    root = tmp_path / "sys"
    (tmp_path / "mountinfo").write_text(mountinfo.replace("{root}", str(root)))
    (tmp_path / "cgroup").write_text(cgroup)
    assert [str(group.relative_to(root)) for group in cgroups.own_groups(tmp_path)] == found


def test_settling_an_ended_process_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    children.settle(child.pid)
    assert not caplog.records


def test_a_score_changed_during_its_read_is_no_error() -> None:
    """As fakedom does for itself, at the same moment."""
    change = "while :; do echo 100 >/proc/$$/oom_score_adj; echo 0 >/proc/$$/oom_score_adj; done"
    with subprocess.Popen(["/bin/sh", "-c", change]) as child:
        try:
            for _ in range(5000):
                children.settle(child.pid)
        finally:
            child.kill()
