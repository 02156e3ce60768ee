"""What protectd says of the host: asked once for each time that it starts, unless a caller wants it fresh."""

from __future__ import annotations

from cri.zones.client import Zones
from cri.zones.follow import Follower
from daemonkit.faults import Unreachable
from xenpod_proto.protect.v1 import protect_pb2 as pb


class Host:
    """Its answer, kept for as long as the stream of changes goes on."""

    def __init__(self, zones: Zones, follower: Follower) -> None:
        self._zones = zones
        self._follower = follower
        self._kept: tuple[int, pb.InfoResponse] | None = None

    async def info(self, *, fresh: bool = False) -> pb.InfoResponse:
        """Unreachable, with the reason, while protectd is away.  Figures that change are as of the last time
        it was asked."""
        if not self._follower.synced.is_set():
            raise Unreachable("ask protectd about", "the host", self._follower.trouble)
        age = self._follower.syncs
        if fresh or self._kept is None or self._kept[0] != age:
            self._kept = (age, await self._zones.info())
        return self._kept[1]
