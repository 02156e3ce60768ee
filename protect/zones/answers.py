"""What a zone was asked of its statistics, and what it answered last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from xenpod_proto.channel.v1 import channel_pb2


class Kind(Enum):
    """What is asked for; each takes longer than the one before."""

    WORKLOADS = "workloads"
    ZONE = "zone"
    DETAILS = "details"


@dataclass(slots=True)
class Question:
    """One that is under way; ``overdue`` once nobody waits for it any more."""

    task: asyncio.Task[channel_pb2.Stats | None]
    overdue: bool = False


@dataclass(slots=True)
class Answers:
    """Of one zone; times are the event loop's."""

    open: dict[Kind, Question] = field(default_factory=dict)
    last: dict[Kind, tuple[float, channel_pb2.Stats]] = field(default_factory=dict)
