"""Faults at random, while pods come and go."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.support.cri.cri_daemons import CriNode
from tests.support.protect.daemons import toml
from xenpod_proto.protect.v1 import protect_pb2 as pb

_ROWS = (
    ("create", "fail"),
    ("create", "half"),
    ("unpause", "fail"),
    ("unpause", "die"),
    ("destroy", "fail"),
    ("destroy", "half"),
    ("attach_disk", "fail"),
    ("attach_disk", "half"),
    ("detach_disk", "fail"),
    ("host_interface", "fail"),
    ("create", "delay"),
)


@dataclass
class Chaos:
    """Causes a fault every few seconds.  ``kills``: also kills daemons, and starts them again."""

    node: CriNode
    random: Random
    xen: bool
    pause: float
    kills: bool = True
    done: Counter[str] = field(default_factory=Counter)
    quiet: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a daemon is down."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 1.8) * self.pause)
            choices = [self._zone_dies, *([] if self.xen else [self._toolstack_fails])]
            choices += [self._daemon_dies] * self.kills
            await self.random.choice(choices)()

    async def _daemon_dies(self) -> None:
        daemon = self.random.choice((self.node.protectd.daemon, self.node.daemon))
        async with self.quiet:
            await daemon.crash()
            await daemon.start()
        self.done[f"{daemon.module} killed"] += 1

    async def _zone_dies(self) -> None:
        """Some zone's domain is destroyed behind protectd's back."""
        async with self.node.protectd.clients() as clients:
            answer = await clients.zones.ListZones(pb.ListZonesRequest(), timeout=300.0, wait_for_ready=True)
        living = [zone.domain_id for zone in answer.zones if zone.state == pb.ZONE_STATE_RUNNING]
        if not living:
            return
        victim = self.random.choice(living)
        if self.xen:
            killing = await asyncio.create_subprocess_exec(
                *("xl", "destroy", str(victim)), stderr=asyncio.subprocess.DEVNULL
            )
            if await killing.wait():
                return  # the pod was faster
        else:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return
        self.done["zone killed"] += 1

    async def _toolstack_fails(self) -> None:
        """The next steps of the fake toolstack go wrong."""
        at, kind = self.random.choice(_ROWS)
        row = {"at": at, "kind": kind, "name": "*", "skip": self.random.randrange(3), "times": 1}
        row["after_ms"] = self.random.randrange(300)
        file = self.node.protectd.run_dir / "fake/faults.toml"
        draft = file.with_suffix(".new")
        draft.write_text(toml({"fault": [row]}))
        draft.rename(file)
        self.done[f"{at}: {kind}"] += 1

    def calm(self) -> None:
        """No fault from now on."""
        (self.node.protectd.run_dir / "fake/faults.toml").unlink(missing_ok=True)
