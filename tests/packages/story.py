"""A node's life with a pod, step by step: the same on the fake toolstack in namespaces and on Xen in QEMU."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.images.images import build, busybox, write_layout

DAEMONS = ("protectd", "xenpod-cri")
UNITS = (*DAEMONS, "xenpod-zones")
LATER = "/later"
"""In a machine: the folder of the packages with a later version."""

_NETWORK = {
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
_POD = {
    "metadata": {"name": "pod", "namespace": "default", "uid": "pod", "attempt": 0},
    "log_directory": "/var/log/pod",
}
_CONTAINER = {
    "metadata": {"name": "box"},
    "image": {"image": "localhost/busybox:1"},
    "command": ["sh", "-c", "trap 'exit 3' TERM; sleep 1000000 & wait"],
    "log_path": "box.log",
}
_STOPPED = "9d1aaa27d60140bd96365438aad20286"
"""Message of the journal at the stop of a unit (systemd.messages: SD_MESSAGE_UNIT_STOPPED)."""


class Debian(Protocol):
    """A machine with systemd.  Before the boot its tree is at ``root``."""

    @property
    def root(self) -> Path: ...
    def write(self, path: str, text: str) -> None:
        """Write a file, before the first boot."""

    def boot(self) -> None:
        """Boot; returns when systemd has started everything, or could not."""

    def shut_down(self) -> None:
        """Shut down in order."""

    def run(self, *command: str, fails: bool = False) -> str:
        """Standard output and error of a program.  AssertionError: the program failed, or with ``fails``
        succeeded.
        """

    def until(self, script: str, what: str) -> None:
        """Wait until a shell script succeeds."""


def put_packages(machine: Debian, packages: Path, to: str) -> None:
    """Copy the packages of a folder into the tree."""
    shutil.copytree(
        packages,
        machine.root / to.lstrip("/"),
        ignore=lambda _, names: [name for name in names if not name.endswith(".deb")],
    )


def put_workload(machine: Debian) -> None:
    """Copy crictl, an image, and the configuration of crictl and CNI into the tree."""
    found = shutil.which("crictl")
    if found is None:
        pytest.skip("crictl is not on PATH")
    shutil.copy(found, machine.root / "usr/local/bin/crictl")
    machine.write("/etc/cni/net.d/10-pods.conflist", json.dumps(_NETWORK))
    machine.write("/pod.json", json.dumps(_POD))
    machine.write("/container.json", json.dumps(_CONTAINER))
    (machine.root / "var/log/journal").mkdir(parents=True, exist_ok=True)  # the journal of a shutdown is kept
    write_layout(machine.root / "image", build([busybox()], {"Cmd": ["sh"]}), "localhost/busybox:1")


def main_pids(machine: Debian) -> dict[str, int]:
    """Process ids of both daemons; 0: not running."""
    show = ("systemctl", "show", "--property=MainPID", "--value")
    return {daemon: int(machine.run(*show, daemon)) for daemon in DAEMONS}


@dataclass(frozen=True, slots=True)
class NodeWithPod:
    """``names``: the packages of the node."""

    machine: Debian
    names: Sequence[str]
    box: str
    started: str
    """Start of the container in CRI's status."""

    @classmethod
    def begin(cls, machine: Debian, names: Sequence[str]) -> NodeWithPod:
        """Import the image, run the pod and its container."""
        machine.run("protect", "image", "import", "/image")
        pod = machine.run("crictl", "runp", "/pod.json").strip()
        box = machine.run("crictl", "create", pod, "/container.json", "/pod.json").strip()
        machine.run("crictl", "start", box)
        return cls(machine, names, box, _started(machine, box))

    def is_untouched(self) -> None:
        """The container answers, and is the first container."""
        # xenpod-cri may wait a little before it connects to a new protectd.
        self.machine.until(f"crictl exec {self.box} true", "an answer of the container")
        assert _started(self.machine, self.box) == self.started

    def survives_restarts(self) -> None:
        before = main_pids(self.machine)
        self.machine.run("systemctl", "restart", *DAEMONS)
        self.is_untouched()
        self._are_new(before)

    def survives_a_hang(self) -> None:
        """The watchdog ends a hanging daemon, and systemd starts a new daemon."""
        machine = self.machine
        machine.run("systemctl", "restart", "protectd")  # its count of restarts begins anew
        hung = main_pids(machine)["protectd"]
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", "protectd")
        new = f"pid=$(systemctl show -P MainPID protectd); test $pid != 0 -a $pid != {hung}"
        machine.until(new, "a new protectd")
        machine.until("systemctl is-active protectd", "protectd")
        assert machine.run("systemctl", "show", "--property=NRestarts", "--value", "protectd").strip() == "1"
        self.is_untouched()
        assert "watchdog" in machine.run("journalctl", "--unit=protectd", "--no-pager").lower()

    def survives_an_upgrade(self) -> None:
        """Packages of a later version restart the daemons."""
        before = main_pids(self.machine)
        self._install_later()
        self._are_new(before)
        self.is_untouched()

    def survives_a_removal(self) -> None:
        """Removed and installed again: the zone was only left alone."""
        said = self.machine.run("apt-get", "remove", "-qy", "xenpod")
        assert "zones run on" in said
        self.machine.run("test", "-e", "/usr/bin/protectd", fails=True)
        self._install_later()
        self.machine.run("systemctl", "start", *UNITS)
        self.is_untouched()

    def ends_with_its_host(self, *more: str) -> None:
        """The host goes, in order, and comes back.  ``more``: units that stop after all of ours, in order."""
        self.machine.shut_down()
        self.machine.boot()
        zones = self.machine.run("protect", "zone", "list", "--output", "json")
        assert re.search("host_?shut_?down", zones, re.IGNORECASE), zones
        ended = json.loads(self.machine.run("crictl", "inspect", self.box))["status"]
        assert (ended["state"], ended["exitCode"]) == ("CONTAINER_EXITED", 3), ended
        order = [f"{unit}.service" for unit in ("xenpod-cri", "xenpod-zones", "protectd", *more)]
        assert _last_stops(self.machine, order) == order

    def _install_later(self) -> None:
        files = " ".join(f"{LATER}/{name}_*.deb" for name in self.names)
        self.machine.run("sh", "-c", f"apt-get install -qy --no-install-recommends {files}")

    def _are_new(self, before: dict[str, int]) -> None:
        now = main_pids(self.machine)
        assert all(now[daemon] not in (0, before[daemon]) for daemon in DAEMONS), (before, now)


def _started(machine: Debian, box: str) -> str:
    return str(json.loads(machine.run("crictl", "inspect", box))["status"]["startedAt"])


def _last_stops(machine: Debian, units: Sequence[str]) -> list[str]:
    """The units in the order of their last stop."""
    shown = machine.run("journalctl", "--output=json", "--output-fields=UNIT", f"MESSAGE_ID={_STOPPED}")
    stopped = [str(json.loads(line).get("UNIT")) for line in shown.splitlines() if line.startswith("{")]
    last = {unit: place for place, unit in enumerate(stopped)}
    return sorted((unit for unit in units if unit in last), key=last.__getitem__)
