"""A workload's volumes, from its creation to its end.

They go when it ends, not when it is deleted: the host may want to unmount what they were made of, and an
ended workload can be kept for its log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.volume import Source, close
from protect.state.node import Node, WorkloadRuntime

log = logging.getLogger(__name__)


@contextmanager
def held(sources: Sequence[Source]) -> Iterator[None]:
    """Closes them after the block."""
    try:
        yield
    finally:
        close(sources)


async def release(node: Node, runtime: WorkloadRuntime) -> None:
    """Take them away from one that has ended; its delete tries again.  Its lock is held."""
    try:
        await node.volumes.detach(runtime.zone.id, runtime.id)
    except Fault as fault:
        log.warning("volumes of an ended workload stay: %s", fault, extra=fields(workload=runtime.id))
