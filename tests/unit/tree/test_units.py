"""The systemd units: both daemons see the host's mounts, and the host sees theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "packaging/systemd"

# systemd.exec(5): each of these gives the unit a mount namespace of its own.
APART = {
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "ExecPaths",
    "InaccessiblePaths",
    "MountAPIVFS",
    "MountFlags",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateTmp",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "RootImage",
    "TemporaryFileSystem",
}


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)
def test_no_unit_has_mounts_of_its_own(unit: Path) -> None:
    """It would see other volumes than the kubelet, and lose what it has mounted when it is restarted."""
    keys = {line.split("=", 1)[0].strip() for line in unit.read_text().splitlines() if "=" in line}
    assert "ExecStart" in keys and not keys & APART


@pytest.mark.parametrize("daemon", ["protectd", "xenpod-cri"])
def test_a_daemon_that_hangs_is_ended_and_one_whose_child_the_kernel_ends_is_not(daemon: str) -> None:
    lines = (UNITS / f"{daemon}.service").read_text().splitlines()
    assert {"Type=notify", "NotifyAccess=main", "WatchdogSec=60", "Restart=always"} <= set(lines)
    # Else systemd stops the daemon when the kernel has ended one of its converters.
    assert {"OOMScoreAdjust=-999", "OOMPolicy=continue", "Delegate=yes"} <= set(lines)


def test_zones_end_with_the_host_and_not_with_their_daemon() -> None:
    """systemd stops units in the reverse of their order: zones while protectd and all it needs still run."""
    lines = (UNITS / "xenpod-zones.service").read_text().splitlines()
    keys = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert {"protectd.service", "xendomains.service", "xenstored.service"} <= set(keys["After"].split())
    assert not keys.keys() & {"Requires", "PartOf", "BindsTo", "Requisite", "Upholds"}
    assert "is-system-running" in keys["ExecStop"] and "protect zone shutdown" in keys["ExecStop"]
    deadline = float(keys["ExecStop"].rstrip("'").split()[-1])
    assert float(keys["TimeoutStopSec"]) > deadline + 15
    assert "DefaultDependencies" not in keys, "the conflict with shutdown.target is what stops it"


@pytest.mark.parametrize("daemon", ["protectd", "xenpod-cri"])
def test_no_daemon_ends_zones_when_it_is_stopped(daemon: str) -> None:
    text = (UNITS / f"{daemon}.service").read_text()
    assert "KillMode=process" in text and "ExecStop" not in text
