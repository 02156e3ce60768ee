"""What a zone's link tells of it; everything here comes from the zone, and is untrusted."""

from __future__ import annotations

import logging

from daemonkit.logs import fields
from protect.checks import printable
from protect.model.zone import ZoneState
from protect.state.hub import ZoneSeen
from protect.state.node import Node, ZoneRuntime
from protect.workloads import exits
from protect.zones import deaths, resync
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)


class ZoneEvents:
    """Implements ``LinkEvents`` for one zone."""

    def __init__(self, node: Node, runtime: ZoneRuntime) -> None:
        self._node = node
        self._runtime = runtime

    async def connected(self, hello: channel_pb2.Hello, new_boot: bool) -> None:
        """Bring what we know up to date; during a launch there is nothing to know yet."""
        runtime = self._runtime
        if runtime.zone.state is not ZoneState.RUNNING or runtime.end:
            return
        if runtime.zone.boot_id != hello.boot_id.hex():
            # One domain boots once; another agent in it has none of our workloads.
            log.error("another agent answers in the zone", extra=fields(zone=runtime.id))
            cause = "another agent answers in it"
            self._node.tasks.spawn(deaths.condemn(self._node, runtime, cause), f"end zone {runtime.id}")
            return
        await resync.resync(self._node, runtime)
        self._node.tasks.spawn(resync.finish_intents(self._node, runtime), f"finish in zone {runtime.id}")
        self._node.hub.publish(ZoneSeen(runtime.zone, runtime.connected))

    def process_exited(self, exited: channel_pb2.ProcessExited) -> None:
        exits.on_exit(self._node, self._runtime, exited)

    def violation(self, cause: str) -> None:
        """It is cut off; a running zone is ended, for nobody could say any more what runs in it."""
        runtime = self._runtime
        reason = f"its agent broke the channel's rules: {printable(cause, 200)}"
        log.warning("zone cut off", extra=fields(zone=runtime.id, reason=reason))
        self._node.tasks.spawn(deaths.condemn(self._node, runtime, reason), f"end zone {runtime.id}")
