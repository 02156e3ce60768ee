"""A throw-away Debian in namespaces: a tree where packages are installed and systemd boots on this kernel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.packages import trees
from tests.support.waiting import block_until

_BOOT = Path(__file__).parent / "boot.sh"
_DEADLINE = 120.0
# Units that would change this kernel, or wait for devices.
_MASKED = ("systemd-sysctl", "systemd-modules-load", "systemd-udevd", "systemd-timesyncd", "console-getty")


class Machine:
    """A tree of Debian; ``boot`` makes a running system, and ``run`` runs programs in the system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str, fails: bool = False, seconds: float = 300.0) -> str:
        """Standard output and error of a program in the machine. AssertionError: the program failed, or with
        ``fails`` succeeded.
        """
        done = trees.run([*self._enter(), *command], seconds)
        assert bool(done.returncode) is fails, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def files(self) -> dict[str, str]:
        """Kind of each file and target of each link, without the files of a single boot."""
        found = {}
        for folder, names, files in os.walk(self.root):
            here = Path(folder)
            if here == self.root:
                names[:] = [name for name in names if name not in ("proc", "sys", "dev", "run", "tmp")]
            for name in (*names, *files):
                path = here / name
                what = f"-> {path.readlink()}" if path.is_symlink() else "folder" if path.is_dir() else "file"
                found[f"/{path.relative_to(self.root)}"] = what
        return found

    def boot(self) -> None:
        """Boot; returns when systemd runs, possibly with failed units."""
        for unit in _MASKED:
            link = self.root / "etc/systemd/system" / f"{unit}.service"
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        self._process = subprocess.Popen([_BOOT, self.root], stdin=subprocess.DEVNULL)
        self.until("systemctl is-system-running --wait | grep -Eq 'running|degraded'", "the boot")

    def shut_down(self) -> None:
        """As at a shutdown of the host: systemd stops everything in order."""
        assert self._process
        os.kill(self._init(), signal.SIGRTMIN + 4)  # systemd(1): poweroff.target
        self._process.wait(_DEADLINE)
        self._process = None

    def close(self) -> None:
        """End the machine, in order or not, and remove its control groups and its tree."""
        if self._process:
            self._process.kill()
            self._process.wait()
        for group in Path("/sys/fs/cgroup").glob(f"**/xenpod-machine-{self.root.name}"):
            for folder, _, _ in os.walk(group, topdown=False):
                _remove_group(Path(folder))
        shutil.rmtree(self.root)

    def until(self, script: str, what: str, seconds: float = _DEADLINE) -> None:
        """Wait until a shell script succeeds."""

        def succeeds() -> bool:
            command = [*self._enter(), "sh", "-c", script]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        block_until(succeeds, seconds, lambda: f"{what}; {self.run('journalctl', '-n', '80')}")

    def write(self, path: str, text: str) -> None:
        """Write a file in the machine."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _enter(self) -> Sequence[str]:
        if self._process is None:
            return trees.inside(self.root)
        return ("nsenter", f"--target={self._init()}", "--all", "--root", "--wd=/")

    def _init(self) -> int:
        """The machine's process 1; AssertionError: the process has ended."""
        found: list[int] = []

        def begun() -> bool:
            assert self._process and self._process.poll() is None, "the machine has ended"
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
                found.append(int(children[0]))
            return bool(found)

        block_until(begun, _DEADLINE, "systemd does not begin")
        return found[0]


def _remove_group(folder: Path) -> None:
    """Remove a control group; its killed processes may take a moment."""

    def gone() -> bool:
        with suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    block_until(gone, 10, f"{folder} is empty")
