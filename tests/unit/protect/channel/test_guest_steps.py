"""A zone's own times in traces: within the host's measurement, for any claims of the zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from daemonkit.observe import reported
from daemonkit.observe.observe_settings import TracesConfig
from daemonkit.observe.steps import step
from daemonkit.observe.traces import tracing
from protect.channel import guest_steps
from protect.channel.link import Link
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import Owner
from tests.support.observe.collector import Collector, collecting
from xenpod_proto.channel.v1 import channel_pb2 as pb

FACTS = pb.Request(get_facts=pb.GetFacts())
MOST = 2**64 - 1
HOSTILE = {
    "before time began": pb.StepTime(step=pb.STEP_KERNEL, ago_us=MOST, duration_us=1),
    "for ever": pb.StepTime(step=pb.STEP_MOUNTS, ago_us=MOST, duration_us=MOST),
    "later than now": pb.StepTime(step=pb.STEP_MODULES, ago_us=0, duration_us=MOST),
    "longer than ago": pb.StepTime(step=pb.STEP_CGROUPS, ago_us=1, duration_us=10**9),
    "nothing": pb.StepTime(step=pb.STEP_DEVICES),
}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


async def spans(collector: Collector, agent: SimAgent, sampling: float = 1.0) -> list[trace_pb2.Span]:
    """All spans of a zone with a greeting and a question."""
    link = Link("z1", agent.dial, Owner())
    async with tracing(TracesConfig(collector.endpoint, sampling=sampling), "p"):
        with step("zone.boot", zone="z1"):
            hello = await link.open(60)
            reported.show_steps(hello.steps)
        await link.call(FACTS, 60)
    await link.close()
    await agent.stop()
    assert agent.faults == []
    return [one.span for one in collector.spans]


def inside(child: trace_pb2.Span, parent: trace_pb2.Span) -> bool:
    return (
        child.parent_span_id == parent.span_id
        and parent.start_time_unix_nano <= child.start_time_unix_nano
        and child.start_time_unix_nano <= child.end_time_unix_nano
        and child.end_time_unix_nano <= parent.end_time_unix_nano
    )


def attributes(span: trace_pb2.Span) -> dict[str, object]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


async def test_absurd_times_stay_within_the_call(collector: Collector) -> None:
    agent = SimAgent()
    agent.steps = list(HOSTILE.values())
    found = await spans(collector, agent)
    guests = [one for one in found if one.name.startswith("guest.")]
    assert len(guests) == 2 * len(HOSTILE)
    for name in ("zone.boot", "agent.get_facts"):
        (parent,) = (one for one in found if one.name == name)
        below = [one for one in guests if one.parent_span_id == parent.span_id]
        assert len(below) == len(HOSTILE) and all(inside(one, parent) for one in below)
    for one in guests:
        said = attributes(one)
        assert said["untrusted"] is True
        assert isinstance(said["reported_us"], int) and 0 <= said["reported_us"] <= guest_steps.LONGEST_US


async def test_true_times_are_placed_before_the_answer(collector: Collector) -> None:
    agent = SimAgent()
    agent.steps = [
        pb.StepTime(step=pb.STEP_CRUN_CREATE, ago_us=3, duration_us=2),
        pb.StepTime(step=pb.STEP_CRUN_START, ago_us=1, duration_us=1),
    ]
    found = await spans(collector, agent)
    (parent,) = (one for one in found if one.name == "agent.get_facts")
    create, start = (one for one in found if one.parent_span_id == parent.span_id)
    assert (create.name, start.name) == ("guest.crun_create", "guest.crun_start")
    assert create.end_time_unix_nano - create.start_time_unix_nano == 2000
    assert start.start_time_unix_nano - create.start_time_unix_nano == 2000
    assert attributes(create)["reported_us"] == 2


async def test_unknown_steps_and_too_many_are_left_out(collector: Collector) -> None:
    agent = SimAgent()
    later = pb.Reply.FromString(b"\xb2\x04\x06\x08\x63\x10\x01\x18\x01").steps[0]
    assert later.step == 99
    agent.steps = [later, *[HOSTILE["nothing"]] * 300]
    found = await spans(collector, agent)
    names = [one.name for one in found if one.name.startswith("guest.")]
    assert names == ["guest.devices"] * (guest_steps.MOST_STEPS - 1) * 2


async def test_silent_agents_and_disabled_traces_add_no_spans(collector: Collector) -> None:
    assert {one.name for one in await spans(collector, SimAgent())} == {"zone.boot", "agent.get_facts"}
    agent = SimAgent()
    agent.steps = list(HOSTILE.values())
    collector.spans.clear()
    assert await spans(collector, agent, sampling=0.0) == []
    link = Link("z1", agent.dial, Owner())
    assert (await link.open(60)).steps.steps
    assert (await link.call(FACTS, 60)).facts.pid1 == "init"
    await link.close()
    await agent.stop()
