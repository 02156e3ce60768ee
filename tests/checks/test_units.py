"""The systemd units are valid, both daemons see the host's mounts, and the host sees the daemons' mounts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cri.container import execsync
from protect.state import output_memory

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "packaging/systemd"

# systemd.exec(5): each of these options gives the unit its own mount namespace.
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

DAEMONS = ("protectd", "xenpod-cri")
EXPOSURE = {
    "protectd": 81,
    "xenpod-cri": 86,
    "xenpod-dra": 41,
    "xenpod-labels": 41,
    "xenpod-libxl": 24,
    "xenpod-zones": 40,
}
"""Maximum exposure by ``systemd-analyze security``, times ten. docs/install.md has the reasons."""

SYSTEMD = Path("/lib/systemd/system")
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (make setup)"
)


def sections(unit: Path) -> dict[str, dict[str, list[str]]]:
    """The values of each key of a unit, by section."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in unit.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            keys = found.setdefault(heading[1], {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            keys.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the installed units, the targets of systemd, and programs that do nothing."""
    root = tmp_path_factory.mktemp("root")
    command = ["make", "-s", "-f", "packaging/Makefile", "units", f"DESTDIR={root}", "PREFIX=/usr"]
    subprocess.run(command, cwd=ROOT, check=True)
    units = root / "usr/lib/systemd/system"
    for target in SYSTEMD.glob("*.target"):
        (units / target.name).write_bytes(target.read_bytes())
    text = "".join(unit.read_text() for unit in units.glob("*.service"))
    for program in {"/bin/sh", *re.findall(r"(?:/usr|/bin)/[\w/-]+", text)}:
        path = root / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
    return root


@pytest.mark.parametrize("unit", [*DAEMONS, "xenpod-dra", "xenpod-labels", "xenpod-zones"])
def test_no_daemon_has_mounts_of_its_own(unit: str) -> None:
    """With its own mounts a daemon would see other volumes than the kubelet, and lose its mounts at a
    restart.
    """
    for path in (UNITS / f"{unit}.service", *UNITS.glob(f"{unit}.service.d/*")):
        assert not sections(path)["Service"].keys() & APART, path


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_hanging_daemon_is_ended_and_survives_the_oom_kill_of_a_child(daemon: str) -> None:
    lines = (UNITS / f"{daemon}.service").read_text().splitlines()
    assert {"Type=notify", "NotifyAccess=main", "WatchdogSec=60", "Restart=always"} <= set(lines)
    # Without the option systemd stops the daemon if the kernel ends one of its converters.
    assert {"OOMScoreAdjust=-999", "OOMPolicy=continue", "Delegate=yes"} <= set(lines)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_children_reach_the_memory_limit_before_their_daemon(daemon: str) -> None:
    said = sections(UNITS / f"{daemon}.service")["Service"]
    # MemoryHigh would slow down the daemon for its children's memory.
    assert said["MemoryMax"] == ["2G"] and "MemoryHigh" not in said
    # Four times what tenants may make both daemons keep, beside their own size of some 70 MiB each.
    assert execsync.MEMORY_BUDGET_BYTES + output_memory.MEMORY_BUDGET <= (512 << 20) - 2 * (128 << 20)


def test_units_keep_the_rights_for_confining_workers() -> None:
    """A daemon needs rights to give a worker a new namespace, root directory and user."""
    said = sections(UNITS / "xenpod-cri.service")["Service"]
    assert said["NoNewPrivileges"] == ["yes"]
    assert not said.keys() & {"User", "PrivateUsers", "RestrictNamespaces", "SystemCallFilter"}
    taken = said["CapabilityBoundingSet"]
    assert all(value.startswith("~") for value in taken)
    needed = {
        f"CAP_{name}" for name in ("CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_CHROOT")
    }
    assert not needed & set(" ".join(taken).replace("~", "").split())


@pytest.mark.parametrize("unit", [*DAEMONS, "xenpod-dra", "xenpod-labels"])
def test_no_daemon_is_given_up(unit: str) -> None:
    """systemd's default is five starts within ten seconds. A missing part at a boot takes longer."""
    said = sections(UNITS / f"{unit}.service")
    assert said["Unit"]["StartLimitIntervalSec"] == ["0"] and said["Service"]["Restart"] == ["always"]


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


@pytest.mark.parametrize("unit", ["protectd", "xenpod-zones"])
def test_units_with_xen_start_after_all_units_of_xen(unit: str) -> None:
    """Debian 12 and 13 have xen.service, of an init script or for it; Xen's own units are two."""
    after = " ".join(sections(UNITS / f"{unit}.service")["Unit"]["After"]).split()
    assert {"xen.service", "xenstored.service", "xenconsoled.service"} <= set(after)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_stopped_daemon_ends_no_zone(daemon: str) -> None:
    text = (UNITS / f"{daemon}.service").read_text()
    assert "KillMode=process" in text and "ExecStop" not in text


@needs_systemd
def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    units = sorted(UNITS.glob("*.service"))
    command = ["systemd-analyze", "verify", f"--root={installed}", "--man=no", *(unit.name for unit in units)]
    done = subprocess.run(command, cwd=installed / "usr/lib/systemd/system", capture_output=True, text=True)
    # systemd-analyze says nothing about missing units.
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_no_more_exposed_than_is_said(installed: Path) -> None:
    assert EXPOSURE.keys() == {unit.stem for unit in UNITS.glob("*.service")}
    for unit, most in EXPOSURE.items():
        command = ["systemd-analyze", "security", "--offline=true", f"--root={installed}"]
        command += [f"--threshold={most}", f"{unit}.service"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{unit}: {done.stdout.splitlines()[-1]}"
