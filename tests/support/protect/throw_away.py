"""A host in a folder, prepared for zones, and programs that change the host as the real programs do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken, Missing
from hostsetup.doctor import checks
from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.machine import CheckedMachine, CheckResult

RELEASE = "6.1.0-test"
MODULES = ("xen_gntdev", "xen_evtchn", "xen_blkback", "xen_netback")
NETWORK = '{"name": "n", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}'
KUBELET = """\
containerRuntimeEndpoint: unix:///run/xenpod/cri.sock
featureGates:
  PodAndContainerStatsFromCRI: true
serializeImagePulls: false
cgroupDriver: systemd
"""

FOLDERS = (
    "usr/lib/cni", "proc/xen", "proc/103", "proc/sys/net/ipv4", "sys/fs/cgroup", "run/systemd/system", "held",
    "etc/modules-load.d", "etc/sysctl.d", "etc/default/grub.d",
)  # fmt: skip

PROGRAMS = {
    "modprobe": 'mkdir -p "$ROOT/sys/module/$1"',
    "apt-get": """
for package; do case $package in
  squashfs-tools-ng) printf '#!/bin/sh\\n' >"$BIN/tar2sqfs"; chmod 755 "$BIN/tar2sqfs" ;;
  containernetworking-plugins)
    for plugin in bridge host-local; do
      printf '#!/bin/sh\\n' >"$ROOT/usr/lib/cni/$plugin"; chmod 755 "$ROOT/usr/lib/cni/$plugin"
    done ;;
  chrony) touch "$ROOT/has-chrony" ;;
  xen-system-amd64) touch "$ROOT/has-xen" ;;
esac; done""",
    "reboot": """
if [ -e "$ROOT/has-xen" ]; then
  mkdir -p "$ROOT/sys/hypervisor/version"
  echo xen >"$ROOT/sys/hypervisor/type"
  echo 4 >"$ROOT/sys/hypervisor/version/major"; echo 17 >"$ROOT/sys/hypervisor/version/minor"
fi
groups="$ROOT/sys/fs/cgroup/cgroup.controllers"
grep -qs cgroup_disable "$ROOT/etc/default/grub" || echo cpu io memory pids >"$groups\"""",
    "update-grub": ":",
    "mount": """
case $2 in
  cgroup2) echo cpu io memory pids >"$4/cgroup.controllers" ;;
  xenfs) echo control_d >"$4/capabilities" ;;
esac""",
    "systemctl": """
unit=$2; [ "$1" = enable ] && unit=$3
case $unit in
  xen.service)
    mkdir -p "$ROOT/proc/101" "$ROOT/proc/102"
    echo xenstored >"$ROOT/proc/101/comm"; echo xenconsoled >"$ROOT/proc/102/comm" ;;
  chrony.service) [ -e "$ROOT/has-chrony" ] && echo yes >"$ROOT/synchronized" ;;
  protectd.service) mv "$ROOT/held/protect.sock" "$ROOT/run/protect/protect.sock" ;;
  xenpod-cri.service) mv "$ROOT/held/cri.sock" "$ROOT/run/xenpod/cri.sock" ;;
  kubelet.service)
    if [ -e "$ROOT/etc/default/kubelet" ]; then
      . "$ROOT/etc/default/kubelet"
      printf 'kubelet\\0%s\\0' "$KUBELET_EXTRA_ARGS" >"$ROOT/proc/103/cmdline"
    fi ;;
esac""",
    "timedatectl": 'cat "$ROOT/synchronized"',
    "protect": '[ "$*" = "image prune --all" ] && echo "100 90" >"$ROOT/room"',
    "make": 'mkdir -p zone/build/root/usr/bin; for part in lookup root/init root/usr/bin/crun; do '
    'printf "#!/bin/sh\\n" >zone/build/$part; chmod 755 zone/build/$part; done',
}  # fmt: skip


@dataclass
class ThrowAway:
    """The host: its root, the programs for fixes, and the questions to it."""

    root: Path
    bin: Path
    settings: DoctorSettings

    def results(self) -> dict[str, CheckResult]:
        return {result.check: result for result in checks.run_checks(self.machine, self.settings)}

    @property
    def machine(self) -> CheckedMachine:
        return CheckedMachine(
            root=self.root, release=RELEASE, run=self._run, room=self._room, owner=os.getuid(),
            which=lambda name: shutil.which(name, path=str(self.bin)),
        )  # fmt: skip

    def apply(self, fix: str) -> None:
        """Run a fix as printed, in a shell."""
        subprocess.run(["sh", "-ec", fix], env=self._environment, cwd=self.root.parent, check=True)

    def file(self, place: str, text: str = "", mode: int = 0o644) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def remove(self, place: str) -> None:
        """A file, or a folder with its content."""
        path = self.root / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "ROOT": str(self.root), "BIN": str(self.bin)}

    def _run(self, command: Sequence[str]) -> bytes:
        if not shutil.which(command[0], path=self._environment["PATH"]):
            raise Missing("run", command[0], "it is not installed")
        done = subprocess.run(command, env=self._environment, capture_output=True, check=False)
        if done.returncode:
            raise Broken("run", command[0], done.stderr.decode())
        return done.stdout

    def _room(self, path: Path) -> tuple[int, int]:
        total, free = (self.root / "room").read_text().split()
        return int(total) << 30, int(free) << 30


@contextmanager
def healthy_host(folder: Path) -> Iterator[ThrowAway]:
    """``folder`` has a short name, for the sockets in the folder."""
    root, programs = folder / "r", folder / "b"
    programs.mkdir(parents=True)
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    made = ThrowAway(root, programs, DoctorSettings(notices=()))
    for place in FOLDERS:
        (root / place).mkdir(parents=True)
    for name in MODULES:
        made.apply(f"modprobe {name}")
    packages = "xen-system-amd64 squashfs-tools-ng containernetworking-plugins chrony"
    made.apply(f"apt-get install {packages} && reboot")
    made.apply("systemctl restart xen.service && systemctl enable --now chrony.service")
    made.apply(f"mount -t xenfs xenfs {root}/proc/xen && protect image prune --all")
    guest = root / "usr/lib/xenpod/guest"
    made.apply(f"make && mkdir -p {guest} && cp -a zone/build/. {guest}/")
    made.file("etc/protect/protectd.toml")
    made.file("etc/xenpod/cri.toml", "log_level = 'debug'\n")
    made.file("proc/sys/net/ipv4/ip_forward", "1\n")
    made.file("etc/cni/net.d/10-n.conflist", NETWORK)
    made.file("etc/default/grub", "GRUB_CMDLINE_LINUX=\n")
    made.file("var/lib/kubelet/config.yaml", KUBELET)
    (root / "var/lib/protect").mkdir(parents=True, mode=0o700)
    with ExitStack() as sockets:
        for place in ("run/protect/protect.sock", "run/xenpod/cri.sock"):
            (root / place).parent.mkdir(parents=True)
            served = sockets.enter_context(socket.socket(socket.AF_UNIX))
            served.bind(str(root / place))
            (root / place).chmod(0o600)
            served.listen()
        yield made
