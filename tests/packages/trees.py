"""Trees of throw-away Debians, made by debootstrap once, and kept as archives in the build folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / "build" / "machine"
SUITE = "bookworm"
_SMALL = "systemd,systemd-sysv,dbus,iproute2,python3,zstd,crun"
# GRUB makes its menu only: GRUB boots nothing, and is installed to no disk.
_XEN_HOST = (
    *("linux-image-amd64", "xen-system-amd64", "grub-pc", "udev", "kmod"),
    # Dependencies of the project's packages: a dom0 in QEMU has no network.
    *("gcc", "libc6-dev", "libxen-dev", "python3-dev", "libseccomp2", "squashfs-tools-ng"),
    "containernetworking-plugins",
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
}


def small(to: Path) -> None:
    """Unpack a small Debian with systemd into the folder ``to``."""
    _unpack(_kept(SUITE, _debootstrap), to)


def xen_host(to: Path) -> None:
    """Unpack a Debian with its kernel, Xen and GRUB, like a machine before xenpod."""
    _unpack(_kept(f"{SUITE}-xen", _with_xen), to)


def inside(root: Path) -> list[str]:
    """A command that runs its arguments in a tree that is not booted."""
    return ["unshare", "--mount", "--fork", "--kill-child", str(HERE / "enter.sh"), str(root)]


def run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the command with the environment of a machine's programs; output and errors are one text."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
        env=_ENVIRONMENT,
    )


def _unpack(archive: Path, to: Path) -> None:
    to.mkdir()
    subprocess.run(["tar", "-C", str(to), "-xpf", str(archive)], check=True)
    # No service is started but by systemd.
    (to / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\n[ -d /run/systemd/system ] || exit 101\n")
    (to / "usr/sbin/policy-rc.d").chmod(0o755)
    shutil.copy("/etc/resolv.conf", to / "etc/resolv.conf")


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The archive of a tree; ``make`` makes a missing archive."""
    archive = KEPT / f"{name}.tar"
    if not archive.exists():
        tree = KEPT / name
        shutil.rmtree(tree, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        make(tree)
        draft = archive.with_suffix(".new")
        subprocess.run(["tar", "-C", str(tree), "-cf", str(draft), "."], check=True)
        draft.rename(archive)
        shutil.rmtree(tree)
    return archive


def _debootstrap(tree: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={_SMALL}", SUITE, str(tree)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _with_xen(tree: Path) -> None:
    small(tree)
    # grub-pc asks for a disk; here none.
    answer = "echo grub-pc grub-pc/install_devices_empty boolean true | debconf-set-selections"
    modules = tree / "usr/share/initramfs-tools/modules.d/machine"
    modules.parent.mkdir(parents=True)
    modules.write_text("virtio_pci\nvirtio_blk\next4\n")
    # Only the needed drivers: in emulation the kernel takes half a minute to unpack all drivers.
    settings = tree / "etc/initramfs-tools/conf.d/machine"
    settings.parent.mkdir(parents=True)
    settings.write_text("MODULES=list\n")
    install = ["apt-get", "install", "-qy", "--no-install-recommends", *_XEN_HOST]
    for command in (["sh", "-c", answer], ["apt-get", "update", "-q"], install, ["apt-get", "clean"]):
        done = run([*inside(tree), *command], 1200)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
