"""A pod's network namespace in CNI's form, and a peer on the far end of its interface."""

from __future__ import annotations

import subprocess
from uuid import uuid4

MTU = 1400


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)


class PodNetwork:
    """``eth0`` in the pod's namespace, ``pod0`` in the peer's; IPv4 and IPv6."""

    def __init__(self) -> None:
        name = uuid4().hex[:8]
        self.pod = f"xpt-pod-{name}"
        self.peer = f"xpt-peer-{name}"
        self.path = f"/run/netns/{self.pod}"

    def __enter__(self) -> PodNetwork:
        for name in (self.pod, self.peer):
            run("ip", "netns", "add", name)
        self.ip("pod", "link add eth0 type veth peer name pod0 netns", self.peer)
        for side, device, host in (("pod", "eth0", 5), ("peer", "pod0", 1)):
            self.ip(side, f"link set {device} mtu {MTU} up")
            self.ip(side, f"addr add 10.77.0.{host}/24 dev {device}")
            self.ip(side, f"addr add fd77::{host}/64 dev {device} nodad")
        self.ip("pod", "route add default via 10.77.0.1")
        self.ip("pod", "-6 route add default via fd77::1")
        return self

    def __exit__(self, *exc: object) -> None:
        for name in (self.pod, self.peer):
            run("ip", "netns", "del", name, check=False)

    def ip(self, side: str, command: str, *more: str) -> str:
        """An ``ip`` command in the pod's or the peer's namespace."""
        namespace = self.pod if side == "pod" else self.peer
        return run("ip", "-n", namespace, *command.split(), *more).stdout

    def execute(self, side: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in a namespace; its failure is an answer, not an error."""
        namespace = self.pod if side == "pod" else self.peer
        return run("ip", "netns", "exec", namespace, *command, check=False)

    def ping(self, address: str, count: int = 2, side: str = "peer", patience: int = 30) -> bool:
        """Whether each of ``count`` pings is answered within ``patience`` seconds."""
        done = self.execute(side, "ping", "-q", "-i", "0.2", "-c", str(count), "-W", str(patience), address)
        return f" {count} received" in done.stdout

    def interfaces(self, side: str = "pod") -> set[str]:
        lines = self.ip(side, "-o link show").splitlines()
        return {line.split()[1].rstrip(":").partition("@")[0] for line in lines}
