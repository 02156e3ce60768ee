"""The Debian packages: installed, started by systemd, upgraded under a running pod, removed without trace."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.packages.machine import Machine
from tests.support.images.images import build, busybox, write_layout

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1500)]

DAEMONS = ("protectd", "xenpod-cri")
KERNEL = "6.1.0-99-amd64"
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]]},
        }
    ],
}
POD = {
    "metadata": {"name": "pod", "namespace": "default", "uid": "pod", "attempt": 0},
    "log_directory": "/var/log/pod",
}
CONTAINER = {
    "metadata": {"name": "box"},
    "image": {"image": "localhost/busybox:1"},
    "command": ["sh", "-c", "trap 'exit 3' TERM; sleep 1000000 & wait"],
    "log_path": "box.log",
}
# Logs, caches and indexes that packages of Debian leave wherever they are installed.
OTHERS = ("/var/log/", "/var/cache/", "/var/lib/dpkg/", "/var/lib/apt/", "/etc/ld.so.cache", "/.before")


def install(machine: Machine, packages: Path, *names: str) -> None:
    """Install packages of the folder, with what of Debian's they depend on."""
    to = machine.root / "debs"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in names:
        [package] = packages.glob(f"{name}_*.deb")
        shutil.copy(package, to)
    files = [f"/debs/{path.name}" for path in sorted(to.iterdir())]
    machine.run("apt-get", "install", "-qy", "--no-install-recommends", *files, seconds=900)
    shutil.rmtree(to)


def fake_kernel(machine: Machine) -> None:
    """A kernel that has built in all that zones need."""
    modules = machine.root / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    names = (
        "xen-gntalloc xen-gntdev xen-evtchn xen-blkfront xen-netfront squashfs erofs overlay 9pnet-fd 9p ext4"
    )
    (modules / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in names.split()))
    (modules / "modules.dep").write_text("")
    (machine.root / f"boot/vmlinuz-{KERNEL}").touch()


def on_the_fake(machine: Machine) -> None:
    """Configure it as an operator without Xen would, with a network and crictl."""
    config = machine.root / "etc/protect/protectd.toml"
    config.write_text(config.read_text().replace('toolstack = "libxl"', 'toolstack = "fake"'))
    machine.write("/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
    endpoint = "unix:///run/xenpod/cri.sock"
    machine.write(
        "/etc/crictl.yaml", f"runtime-endpoint: {endpoint}\nimage-endpoint: {endpoint}\ntimeout: 120\n"
    )
    found = shutil.which("crictl")
    if found is None:
        pytest.skip("crictl is not on PATH")
    shutil.copy(found, machine.root / "usr/local/bin/crictl")
    machine.write("/pod.json", json.dumps(POD))
    machine.write("/container.json", json.dumps(CONTAINER))
    write_layout(machine.root / "image", build([busybox()], {"Cmd": ["sh"]}), "localhost/busybox:1")


def main_pid(machine: Machine, daemon: str) -> int:
    return int(machine.run("systemctl", "show", "--property=MainPID", "--value", daemon))


def restarts(machine: Machine, daemon: str) -> int:
    return int(machine.run("systemctl", "show", "--property=NRestarts", "--value", daemon))


def test_what_was_installed_is_there_and_what_was_purged_is_gone(machine: Machine, packages: Path) -> None:
    install(machine, packages, "xenpod-guest")
    machine.run("apt-get", "purge", "-qy", "xenpod-guest")
    before = machine.files()
    install(machine, packages, "xenpod", "xenpod-guest", "xenpod-dra")
    listed = machine.run("sh", "-c", "cat $(ls /var/lib/dpkg/info/*.list | grep -v xenpod)").split()
    of_others = {*listed, *(f"/usr{path}" for path in listed)}  # /lib is a link to /usr/lib
    for command in ("protect", "protectd", "xenpod-cri", "xenpod-labels", "xenpod-dra"):
        assert "--" in machine.run(command, "--help")
    for unit in (*DAEMONS, "xenpod-zones", "xenpod-dra", "xenpod-labels"):
        # Nothing is started before the host is what its operator wants it to be.
        machine.run("systemctl", "is-enabled", unit, fails=True)
    guest = machine.root / "usr/lib/xenpod/guest"
    assert [path.name for path in guest.glob("initramfs*")] == ["initramfs.cpio"]

    # A kernel comes, and goes.
    fake_kernel(machine)
    said = machine.run("run-parts", f"--arg={KERNEL}", "/etc/kernel/postinst.d")
    assert "initramfs-6" in said and (guest / f"initramfs-{KERNEL}.cpio").stat().st_size > 2_000_000
    assert machine.run("/usr/lib/xenpod/update-guest") == "", "nothing has changed"
    (machine.root / f"boot/vmlinuz-{KERNEL}").unlink()
    assert "removed" in machine.run("run-parts", f"--arg={KERNEL}", "/etc/kernel/postrm.d")
    assert [path.name for path in guest.glob("initramfs*")] == ["initramfs.cpio"]
    shutil.rmtree(machine.root / "lib/modules")

    machine.run("apt-get", "purge", "-qy", "xenpod", "xenpod-guest", "xenpod-dra")
    after = {path: what for path, what in machine.files().items() if path not in of_others}
    left = {path for path, what in after.items() if before.get(path) != what and not path.startswith(OTHERS)}
    assert left == set()


def test_the_binding_is_built_for_the_headers_that_are_there(machine: Machine, packages: Path) -> None:
    install(machine, packages, "xenpod", "xenpod-guest", "xenpod-libxl")
    python = "/usr/lib/xenpod/venv/bin/python3"
    show = "from xenbind import raw, _libxl; print(raw.available(), _libxl.__file__)"
    available, path = machine.run(python, "-c", show).split()
    module = machine.root / path.lstrip("/")
    assert available == "True" and path.startswith("/usr/lib/xenpod/venv/lib/")
    built = module.stat().st_mtime_ns
    # Other headers: dpkg's trigger.
    machine.run("apt-get", "install", "-qy", "--reinstall", "libxen-dev")
    assert module.stat().st_mtime_ns > built
    machine.run("apt-get", "remove", "-qy", "xenpod-libxl")
    assert not module.exists() and "False" in machine.run(
        python, "-c", show.replace(", _libxl.__file__", "").replace(", _libxl", "")
    )


def test_pods_outlive_restart_hang_upgrade_and_removal(machine: Machine, packages: Path, later: Path) -> None:
    install(machine, packages, "xenpod", "xenpod-guest")
    machine.run("apt-get", "install", "-qy", "--no-install-recommends", "containernetworking-plugins")
    on_the_fake(machine)
    shutil.copytree(
        later, machine.root / "later", ignore=lambda _, names: [n for n in names if not n.endswith(".deb")]
    )
    machine.boot()
    machine.run("systemctl", "enable", "--now", *DAEMONS, "xenpod-zones")
    machine.run("protect", "image", "import", "/image")
    pod = machine.run("crictl", "runp", "/pod.json").strip()
    box = machine.run("crictl", "create", pod, "/container.json", "/pod.json").strip()
    machine.run("crictl", "start", box)

    def pid() -> str:
        # xenpod-cri may wait a little before it connects to a protectd that is new.
        machine.until(f"crictl exec {box} true", "an answer of the container")
        return str(json.loads(machine.run("crictl", "inspect", box))["status"]["startedAt"])

    started = pid()
    before = {daemon: main_pid(machine, daemon) for daemon in DAEMONS}
    machine.run("systemctl", "restart", *DAEMONS)
    assert pid() == started
    assert all(main_pid(machine, daemon) != before[daemon] for daemon in DAEMONS)

    # One that hangs is ended by the watchdog, and begins again.
    quick = "mkdir -p /run/systemd/system/protectd.service.d && printf '[Service]\\nWatchdogSec=3\\n'"
    machine.run("sh", "-c", f"{quick} >/run/systemd/system/protectd.service.d/quick.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "protectd")
    hung = main_pid(machine, "protectd")
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", "protectd")
    machine.until(
        f"pid=$(systemctl show -P MainPID protectd); test $pid != 0 -a $pid != {hung}",
        "a new protectd",
    )
    machine.until("systemctl is-active protectd", "protectd")
    assert restarts(machine, "protectd") == 1 and pid() == started
    assert "watchdog" in machine.run("journalctl", "--unit=protectd", "--no-pager").lower()

    # An upgrade restarts what runs.
    before = {daemon: main_pid(machine, daemon) for daemon in DAEMONS}
    machine.run("sh", "-c", "dpkg --install /later/xenpod_*.deb /later/xenpod-guest_*.deb")
    assert all(main_pid(machine, daemon) not in (0, before[daemon]) for daemon in DAEMONS)
    assert pid() == started

    # Removed and installed again: the zone was only left alone.
    said = machine.run("apt-get", "remove", "-qy", "xenpod")
    assert "zones run on" in said and not (machine.root / "usr/bin/protectd").exists()
    machine.run("sh", "-c", "dpkg --install /later/xenpod_*.deb")
    machine.run("systemctl", "start", *DAEMONS, "xenpod-zones")
    assert pid() == started

    # The host goes, in order, and comes back.
    machine.shut_down()
    machine.boot()
    assert re.search(
        "host_?shut_?down", machine.run("protect", "zone", "list", "--output", "json"), re.IGNORECASE
    )
    ended = json.loads(machine.run("crictl", "inspect", box))["status"]
    assert (ended["state"], ended["exitCode"]) == ("CONTAINER_EXITED", 3)
