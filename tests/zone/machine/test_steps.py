"""The agent's report of its time: its steps, their order, and never more than the call's time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client
from tests.support.agent.zone_specs import creation, process_json
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

BOOT = [pb.STEP_MOUNTS, pb.STEP_MODULES, pb.STEP_CGROUPS, pb.STEP_DEVICES]


def names(steps: Iterable[pb.StepTime]) -> list[int]:
    return [one.step for one in steps]


def follow(steps: list[pb.StepTime]) -> bool:
    """Whether each begins when the one before has ended, or later; a microsecond is lost to rounding."""
    return all(
        before.ago_us - before.duration_us >= after.ago_us - 2
        for before, after in zip(steps, steps[1:], strict=False)
    )


def called(client: Client, **op: object) -> tuple[list[pb.StepTime], int]:
    """The steps of a call, and its duration in us."""
    begun = time.monotonic_ns()
    reply = client.call(**op)
    return list(reply.steps), (time.monotonic_ns() - begun) // 1000


def test_a_boot_is_told_in_each_greeting(zone: Zone) -> None:
    told = []
    for _ in range(2):
        client = zone.connect()
        assert client.hello is not None
        told.append(list(client.hello.steps))
        client.close()
    for steps in told:
        assert names(steps) == BOOT and follow(steps)
    first, second = told
    assert [one.duration_us for one in first] == [one.duration_us for one in second]
    assert all(a.ago_us < b.ago_us for a, b in zip(first, second, strict=True))


def test_a_kernel_of_its_own_is_the_first_step(tmp_path: Path, root: Path, cgroups: list[Path]) -> None:
    """A fake zone has no kernel of its own; XENPOD_CLOCK claims otherwise to the agent."""
    zone = Zone(tmp_path, root, cgroups, XENPOD_CLOCK="own")
    try:
        zone.unpause()
        client = zone.connect()
        assert client.hello is not None
        assert names(client.hello.steps) == [pb.STEP_KERNEL, *BOOT]
        client.close()
    finally:
        zone.destroy()


def test_a_container_answered_early_has_the_rest_in_its_start(client: Client) -> None:
    request = creation("c1", "sleep", "1000")
    request.answer_early = True
    created, took = called(client, create_container=request)
    assert names(created)[:2] == [pb.STEP_DISKS, pb.STEP_ROOTFS] and follow(created)
    assert pb.STEP_CRUN_CREATE not in names(created)
    assert all(one.ago_us <= took for one in created)
    started, took = called(client, start_container=pb.StartContainer(id="c1"))
    create, start = started
    assert names(started) == [pb.STEP_CRUN_CREATE, pb.STEP_CRUN_START] and follow(started)
    # crun was at work before the call came.
    assert 0 < start.duration_us <= start.ago_us <= took and create.duration_us > 0


def test_a_container_answered_when_made(client: Client) -> None:
    created, took = called(client, create_container=creation("c1", "sleep", "1000"))
    assert names(created)[-1] == pb.STEP_CRUN_CREATE and follow(created)
    assert sum(one.duration_us for one in created) <= took
    started, _ = called(client, start_container=pb.StartContainer(id="c1"))
    assert names(started) == [pb.STEP_CRUN_START]


def test_an_exec_has_a_report_and_questions_have_none(client: Client) -> None:
    client.start("c1", "sleep", "1000")
    request = pb.ExecProcess(
        process=pb.ProcessRef(container_id="c1", exec_id="e1"),
        process_json=json.dumps(process_json("true")).encode(),
    )
    steps, took = called(client, exec_process=request)
    assert names(steps) == [pb.STEP_CRUN_EXEC] and 0 < steps[0].duration_us <= steps[0].ago_us <= took
    assert not client.call(list_processes=pb.ListProcesses()).steps
    assert not client.call(get_stats=pb.GetStats()).steps
    assert not client.call(delete_container=pb.DeleteContainer(id="c1")).steps
