"""The Debian packages: installed, started by systemd, upgraded under a running pod, removed without trace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.packages.machine import Machine
from tests.packages.story import LATER, UNITS, NodeWithPod, put_packages, put_workload

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1500)]

KERNEL = "6.1.0-99-amd64"
# Logs, caches and indexes that packages of Debian leave at any installation.
OTHERS = ("/var/log/", "/var/cache/", "/var/lib/dpkg/", "/var/lib/apt/", "/etc/ld.so.cache", "/.before")


def install(machine: Machine, packages: Path, *names: str) -> None:
    """Install packages of the folder, with their dependencies in Debian."""
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
    """A kernel with all drivers of zones built in."""
    modules = machine.root / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    names = (
        "xen-gntalloc xen-gntdev xen-evtchn xen-blkfront xen-netfront squashfs erofs overlay 9pnet-fd 9p ext4"
    )
    (modules / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in names.split()))
    (modules / "modules.dep").write_text("")
    (machine.root / f"boot/vmlinuz-{KERNEL}").touch()


def on_the_fake(machine: Machine) -> None:
    """Configure the machine like an operator without Xen."""
    config = machine.root / "etc/protect/protectd.toml"
    config.write_text(config.read_text().replace('toolstack = "libxl"', 'toolstack = "fake"'))
    endpoint = "unix:///run/xenpod/cri.sock"
    machine.write(
        "/etc/crictl.yaml", f"runtime-endpoint: {endpoint}\nimage-endpoint: {endpoint}\ntimeout: 120\n"
    )


def test_installed_packages_work_and_purged_packages_leave_no_files(machine: Machine, packages: Path) -> None:
    install(machine, packages, "xenpod-guest")
    machine.run("apt-get", "purge", "-qy", "xenpod-guest")
    before = machine.files()
    install(machine, packages, "xenpod", "xenpod-guest", "xenpod-dra")
    listed = machine.run("sh", "-c", "cat $(ls /var/lib/dpkg/info/*.list | grep -v xenpod)").split()
    of_others = {*listed, *(f"/usr{path}" for path in listed)}  # /lib is a link to /usr/lib
    for command in ("protect", "protectd", "xenpod-cri", "xenpod-labels", "xenpod-dra"):
        assert "--" in machine.run(command, "--help")
    for unit in (*UNITS, "xenpod-dra", "xenpod-labels"):
        # No unit starts before the operator has set up the host.
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


def test_the_binding_is_built_for_the_installed_headers(machine: Machine, packages: Path) -> None:
    install(machine, packages, "xenpod", "xenpod-guest", "xenpod-libxl")
    python = "/usr/lib/xenpod/venv/bin/python3"
    path = machine.run(python, "-c", "from xenbind import _libxl; print(_libxl.__file__)").strip()
    module = machine.root / path.lstrip("/")
    assert path.startswith("/usr/lib/xenpod/venv/lib/")
    built = module.stat().st_mtime_ns
    # Other headers: dpkg's trigger.
    machine.run("apt-get", "install", "-qy", "--reinstall", "libxen-dev")
    assert module.stat().st_mtime_ns > built
    machine.run("apt-get", "remove", "-qy", "xenpod-libxl")
    assert not module.exists()
    # Imports work without the binding; its first use names the missing part.
    machine.run(python, "-c", "import xenbind.domain")


def test_pods_outlive_restart_hang_upgrade_and_removal(machine: Machine, packages: Path, later: Path) -> None:
    put_workload(machine)
    install(machine, packages, "xenpod", "xenpod-guest")
    machine.run("apt-get", "install", "-qy", "--no-install-recommends", "containernetworking-plugins")
    on_the_fake(machine)
    put_packages(machine, later, LATER)
    machine.boot()
    machine.run("systemctl", "enable", "--now", *UNITS)
    node = NodeWithPod.begin(machine, ("xenpod", "xenpod-guest"))
    node.survives_restarts()
    node.survives_a_hang()
    node.survives_an_upgrade()
    node.survives_a_removal()
    node.ends_with_its_host()
