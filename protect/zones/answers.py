"""What a zone was asked of its statistics, and what it answered last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from xenpod_proto.channel.v1 import channel_pb2


@dataclass(slots=True)
class Question:
    """One that is under way; ``overdue`` once nobody waits for it any more."""

    task: asyncio.Task[channel_pb2.Stats | None]
    overdue: bool = False


@dataclass(slots=True)
class Answers:
    """Of one zone; times are the event loop's."""

    open: dict[bool, Question] = field(default_factory=dict)
    """By whether details are wanted."""
    last: dict[bool, tuple[float, channel_pb2.Stats]] = field(default_factory=dict)
