"""A Debian on Xen: a disk image made from a tree, booted by QEMU, with systemd as dom0's init.

QEMU takes Xen, the kernel and the initramfs from the tree, as GRUB would from the disk.  Commands go through
a port of virtio-serial to ``commands.py``, started by systemd in the machine.
"""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.packages.nested.grub import Entry
from tests.packages.story import DAEMONS
from tests.xen import qemu
from tests.xen.parts import find_parts, version_key

HERE = Path(__file__).parent
_DISK = 8 << 30
_SIZE = qemu.Size(cpus=1)
"""Several emulated processors wait for each other, and are slower than a single processor."""
_DEADLINE = 1800.0
"""Deadline of any wait: in software emulation a boot takes minutes."""
_MORE = 60.0
"""Seconds for QEMU's start, and for an answer beyond the machine's own deadline."""
_TAIL = 4000
_PATIENT = "[Manager]\nDefaultTimeoutStartSec=15min\nDefaultDeviceTimeoutSec=15min\n"
_NEEDLESS = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_reap.service", "e2scrub_all.timer", "systemd-tmpfiles-clean.timer", "systemd-pstore.service"),
    *("getty@tty1.service", "serial-getty@hvc0.service", "systemd-logind.service"),
    *("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service"),
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"),
)
"""Units that would take the processor, or dpkg's lock."""
_MODULES = "virtio_console\n"
"""Module of the commands' port: loaded first, before udev finds its device."""
_DEVICES = ("block", "misc", "net", "virtio-ports", "xen-backend")
_COLDPLUG = f"""[Service]
ExecStart=
ExecStart=udevadm trigger --type=all --action=add {" ".join(f"--subsystem-match={one}" for one in _DEVICES)}
"""
"""udev's first look at the devices: only at awaited devices, not at all devices of the machine."""
_XEN_WORDS = "com1=115200,8n1 console=com1 loglvl=warning guest_loglvl=warning spec-ctrl=no"
_KERNEL_WORDS = (
    "console=hvc0 loglevel=4 panic=5 mitigations=off random.trust_cpu=on net.ifnames=0 "
    "systemd.status_unit_format=name systemd.show_status=error"
)


class NestedDebian:
    """Before the boot ``root`` is the machine's tree; ``boot`` puts the tree on a disk, once."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._folder = folder
        self._disk = folder / "disk"
        self._machine: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._answers = b""
        self._entry: Entry | None = None

    def prepare(self) -> None:
        """Put the needs of commands into the tree, and the settings of GRUB for the machine's console."""
        shutil.copy(HERE / "commands.py", self.root / "usr/local/lib/commands.py")
        shutil.copy(HERE / "commands.service", self.root / "etc/systemd/system/commands.service")
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        (wants / "commands.service").symlink_to("/etc/systemd/system/commands.service")
        self.write("/etc/systemd/system.conf.d/emulated.conf", _PATIENT)
        self.write("/etc/modules-load.d/machine.conf", _MODULES)
        self.write("/etc/systemd/system/systemd-udev-trigger.service.d/emulated.conf", _COLDPLUG)
        for unit in (*DAEMONS, "xenpod-libxl"):  # commands with deadlines of their own
            place = f"/etc/systemd/system/{unit}.service.d/emulated.conf"
            self.write(place, "[Service]\nTimeoutStartSec=15min\n")
        for unit in _NEEDLESS:
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")
        for folder in ("etc", "var"):
            (self.root / folder / ".updated").touch()  # systemd(1): nothing is rebuilt at the first boot
        # the machine does not outlive its disk
        self.write("/etc/dpkg/dpkg.cfg.d/machine", "force-unsafe-io\n")
        self.write("/etc/fstab", "/dev/vda / ext4 defaults 0 1\n")
        self.write("/etc/hostname", "xenpod-machine\n")
        grub = self.root / "etc/default/grub"
        more = f'GRUB_CMDLINE_LINUX="{_KERNEL_WORDS}"\nGRUB_CMDLINE_XEN="{_XEN_WORDS}"\n'
        grub.write_text(grub.read_text() + more)

    def write(self, path: str, text: str) -> None:
        """Write a file of the tree, before the first boot."""
        assert not self._disk.exists(), "the tree is on the disk already"
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def boots(self, entry: Entry) -> None:
        """From now on the machine boots this entry of GRUB's menu."""
        self._entry = entry

    def run(self, *command: str, fails: bool = False, seconds: float = _DEADLINE) -> str:
        """Standard output and error of a program in the machine.  AssertionError: the program failed, or with
        ``fails`` succeeded.
        """
        done = self._ask(command, seconds)
        assert bool(done["status"]) is fails, f"{shlex.join(command)}: {done['status']}\n{done['output']}"
        return str(done["output"])

    def until(self, script: str, what: str, seconds: float = _DEADLINE) -> None:
        """Wait until a shell script succeeds."""
        done = self._ask(("sh", "-c", f"until {script}; do sleep 1; done"), seconds)
        if done["status"]:
            journal = self._ask(("journalctl", "--no-pager", "-n", "200"), _DEADLINE)["output"]
            raise AssertionError(f"{what} did not come: {done['output']}\n{journal}")

    def boot(self) -> None:
        """Boot; returns when systemd has started everything, or could not."""
        if not self._disk.exists():
            self._make_disk()
        listener = socket.socket(socket.AF_UNIX)
        place = self._folder / "commands.sock"
        place.unlink(missing_ok=True)
        with listener:
            listener.bind(str(place))
            listener.listen(1)
            listener.settimeout(_MORE)
            self._machine = subprocess.Popen(
                [
                    *qemu.arguments(find_parts().qemu, self._programs(), _SIZE, self.console),
                    *("-drive", f"file={self._disk},format=raw,if=none,cache=unsafe,id=disk"),
                    *("-device", "virtio-blk-pci,drive=disk"),
                    *("-chardev", f"socket,id=commands,path={place}"),
                    *("-device", "virtserialport,chardev=commands,name=commands"),
                ],
                stdin=subprocess.DEVNULL,
            )
            self._port, _ = listener.accept()
        assert self._answer(_DEADLINE) == {"status": 0, "output": "ready"}
        self.until("systemctl is-system-running --wait | grep -Eq 'running|degraded'", "the boot")

    def shut_down(self) -> None:
        """Shut down like an operator; returns when the machine is off."""
        assert self._machine
        # Powering off also ends the program that sends the answer: the answer may be missing.
        self._send(("systemctl", "poweroff", "--no-block"), _DEADLINE)
        self._machine.wait(_DEADLINE)
        self._hang_up()

    def close(self) -> None:
        """Switch the machine off, and remove its tree and its disk."""
        if self._machine:
            self._machine.kill()
            self._machine.wait()
        self._hang_up()
        shutil.rmtree(self._folder)

    @property
    def console(self) -> Path:
        return self._folder / "console.log"

    def _make_disk(self) -> None:
        with self._disk.open("wb") as file:
            file.truncate(_DISK)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", str(self.root), str(self._disk)], check=True)

    def _programs(self) -> qemu.Boot:
        """Options of GRUB's entry; before the first entry the options of Debian's installer."""
        boot = self.root / "boot"
        entry = self._entry
        if entry is None:
            [xen] = boot.glob("xen-[0-9]*.gz")
            kernel = max(boot.glob("vmlinuz-*"), key=version_key)
            initramfs = f"/boot/initrd.img-{kernel.name.removeprefix('vmlinuz-')}"
            words = f"root=/dev/vda ro {_KERNEL_WORDS}"
            entry = Entry("", f"/boot/{xen.name}", _XEN_WORDS, f"/boot/{kernel.name}", words, initramfs)
        assert "," not in entry.kernel_words, "QEMU divides its modules by commas"
        program = self._folder / "xen"
        program.write_bytes(gzip.decompress((self.root / entry.xen.lstrip("/")).read_bytes()))
        kernel, initramfs_file = (self.root / path.lstrip("/") for path in (entry.kernel, entry.initramfs))
        return qemu.Boot(program, entry.xen_words, kernel, entry.kernel_words, initramfs_file)

    def _ask(self, command: tuple[str, ...], seconds: float) -> dict[str, Any]:
        self._send(command, seconds)
        return self._answer(seconds + _MORE)

    def _send(self, command: tuple[str, ...], seconds: float) -> None:
        assert self._port, "it is not booted"
        self._port.sendall(json.dumps([command, seconds]).encode() + b"\n")

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line; AssertionError: the machine has ended, or says nothing."""
        assert self._port
        self._port.settimeout(seconds)
        while b"\n" not in self._answers:
            try:
                part = self._port.recv(65536)
            except TimeoutError:
                part = b""
            assert part, f"the machine does not answer; its console:\n{self._last_words()}"
            self._answers += part
        line, _, self._answers = self._answers.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self.console.read_text(errors="replace").splitlines()
        # Without systemd's lines that overwrite each other during a start.
        return "\n".join(line for line in lines if line and "start running (" not in line)[-_TAIL:]

    def _hang_up(self) -> None:
        self._machine, self._answers = None, b""
        if self._port:
            self._port.close()
            self._port = None
