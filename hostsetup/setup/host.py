"""The host under set-up: files below a root, memory, CPUs, units."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Refused

MIB = 1 << 20
_TIMEOUT_SECONDS = 600.0
"""update-grub searches every disk for other systems."""


@dataclass(frozen=True, slots=True)
class MachineSize:
    """Memory in bytes and CPUs of the whole machine."""

    memory: int
    cpus: int


class Host:
    """The running host if ``root`` is "/"; else a tree of files, without programs to run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root.resolve() == Path("/")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Return a file's text; None: no file."""
        try:
            return self.at(path).read_text()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str | None) -> None:
        """Replace a file's content atomically and durably, keeping its mode; None: remove the file."""
        file = self.at(path)
        if text is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.xenpod-setup")
        with draft.open("w") as opened:
            os.fchmod(opened.fileno(), file.stat().st_mode & 0o777 if file.exists() else 0o644)
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        draft.rename(file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def is_enabled(self, unit: str) -> bool:
        return self._systemctl("is-enabled", "--quiet", unit).returncode == 0

    def enable(self, unit: str) -> None:
        """Enable a unit at boot; Refused."""
        self._checked("enable", unit)

    def disable(self, unit: str) -> None:
        self._checked("disable", unit)

    def run(self, *command: str) -> None:
        """Run a program of the running host; Refused: the program failed."""
        assert self.live
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
        if done.returncode:
            raise Refused("run", " ".join(command), f"status {done.returncode}: {done.stderr.strip()[-500:]}")

    def machine(self) -> MachineSize:
        """Return the machine's resources, under Xen from Xen: dom0 sees only its own part."""
        if self.live and (self.read("/sys/hypervisor/type") or "").strip() == "xen":
            told = subprocess.run(
                ["xl", "info"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
            )
            found = dict(re.findall(r"^(total_memory|nr_cpus)\s*: (\d+)$", told.stdout, re.MULTILINE))
            if len(found) == 2:
                return MachineSize(int(found["total_memory"]) * MIB, int(found["nr_cpus"]))
            raise Refused("ask Xen", "xl info", told.stderr.strip() or "no total_memory and nr_cpus")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return MachineSize(memory, os.cpu_count() or 1)

    def _checked(self, verb: str, unit: str) -> None:
        done = self._systemctl(verb, unit)
        if done.returncode:
            raise Refused(
                verb, unit, done.stderr.strip() or f"status {done.returncode}", "is xenpod installed?"
            )

    def _systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        where = () if self.live else (f"--root={self.root}",)
        command = ["systemctl", *where, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
