"""SyncClock if the zone's clock is the host's: the clock is read, and never set."""

from __future__ import annotations

import time

import pytest

from tests.support.agent.zone_client import Client, Failed
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

HOUR_NS = 3_600_000_000_000
REFUSED = 9


def test_clock_is_read(client: Client) -> None:
    before = time.time_ns()
    reading = client.call(sync_clock=pb.SyncClock()).clock.realtime_ns
    assert before <= reading <= time.time_ns()


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("add_ns", [1, -1, HOUR_NS, 2**63 - 1, -(2**63)])
def test_clock_of_the_host_is_not_set(client: Client, add_ns: int, step: bool) -> None:
    before, clock = time.time_ns(), time.monotonic_ns()
    with pytest.raises(Failed) as failed:
        client.call(sync_clock=pb.SyncClock(add_ns=add_ns, step=step))
    assert (failed.value.code, failed.value.message) == (
        REFUSED,
        "set clock: CLOCK_REALTIME: it is the host's",
    )
    moved = (time.time_ns() - before) - (time.monotonic_ns() - clock)
    assert abs(moved) < HOUR_NS // 60, "the host's clock was set"
