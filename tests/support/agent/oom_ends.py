"""Ends of containers with an OOM kill in their lives, and whether the kernel ended them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.agent.zone_client import Client
from xenpod_proto.channel.v1 import channel_pb2 as pb

_MEMORY = 24 << 20
_HOG = "tail /dev/zero"


HUNGRY = (
    "while read -r key m unit; do [ $key = MemTotal: ] && break; done </proc/meminfo; "
    "exec dd if=/dev/zero of=/dev/null bs=$((m * 97 / 100))k count=1"
)
"""A script whose process 1 wants nearly all memory of the zone.  The kernel refuses more than all."""


@dataclass(frozen=True)
class OomEnd:
    """A shell script, the signal that the host sends after the script's output "up", and the outcome.

    all: to every process of the container.
    """

    name: str
    script: str
    code: int
    oom_killed: bool
    signal: int = 0
    all: bool = False
    unified: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return self.name

    def check(self, client: Client, container: str, disk: str = "xvda") -> None:
        """Run the container to its end."""
        created = client.start(
            container, "sh", "-c", self.script, memory=_MEMORY, disk=disk, unified=self.unified
        )
        if self.signal:
            client.until(lambda: client.has(created.stdout_stream, b"up"), "output")
            ref = pb.ProcessRef(container_id=container)
            client.call(signal_process=pb.SignalProcess(process=ref, signal=self.signal, all=self.all))
        exited = client.exited(container)
        assert (exited.exit_code, exited.oom_killed) == (self.code, self.oom_killed)
        assert not exited.zone_oom
        client.delete(container)


_LIVES_ON = f"{_HOG}; trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done"
ENDS = (
    OomEnd("child killed, then exit 0", f"{_HOG}; exit 0", 0, False),
    OomEnd("child killed, then exit 1", f"{_HOG}; exit 1", 1, False),
    OomEnd("child killed, then the child's code", f"{_HOG}; exit $?", 137, False),
    OomEnd("process 1 killed", f"exec {_HOG}", 137, True),
    OomEnd("child killed, then process 1", f"{_HOG}; exec {_HOG}", 137, True),
    OomEnd("child killed, then SIGKILL of the host", _LIVES_ON, 137, False, signal.SIGKILL),
    OomEnd("child killed, then SIGKILL of the host to all", _LIVES_ON, 137, False, signal.SIGKILL, True),
    OomEnd("child killed, then SIGTERM of the host", _LIVES_ON, 143, False, signal.SIGTERM),
)
GROUP_ENDS = (
    OomEnd("whole group killed", f"{_HOG}; exit 0", 137, True, unified={"memory.oom.group": "1"}),
    OomEnd("group setting off", f"{_HOG}; exit 0", 0, False, unified={"memory.oom.group": "0"}),
)
"""For version 2 of control groups."""
