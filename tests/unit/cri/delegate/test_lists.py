"""Lists of both runtimes: each item once, filters on both sides, lies left out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from cri.delegate.untrusted import MOST_ITEMS, has_more_items
from daemonkit.config import Seconds
from tests.support.cri.mixed_rig import Mixed, becomes_ready, in_front_of
from tests.support.cri.other_runtime import OtherRuntime, Status
from xenpod_proto.cri.v1 import runtime_pb2 as cri

UNKNOWN = b"\xfa\x3e\x05extra"


def whole(prefix: str) -> str:
    return prefix.ljust(64, "0")


async def both(mixed: Mixed) -> tuple[str, str]:
    """Make a pod of ours and one of the delegate, each with a container."""
    ours, theirs = (
        await mixed.ours.pod("web", handler="xenpod"),
        await mixed.ours.pod("agent", handler="runc"),
    )
    await mixed.ours.started(ours)
    await mixed.ours.started(theirs)
    return ours, theirs


async def test_pods_and_containers_of_both(mixed: Mixed) -> None:
    ours, theirs = await both(mixed)
    reply = await mixed.ours.cri.ListPodSandbox(cri.ListPodSandboxRequest())
    assert [(one.id, one.runtime_handler) for one in reply.items] == [(ours, "xenpod"), (theirs, "runc")]
    found = await mixed.ours.cri.ListContainers(cri.ListContainersRequest())
    assert [one.pod_sandbox_id for one in found.containers] == [ours, theirs]


async def test_filters_hold_on_both_sides(mixed: Mixed) -> None:
    ours, theirs = await both(mixed)
    rig = mixed.ours
    assert await rig.pods(id=ours) == [ours]
    assert await rig.pods(id=theirs) == [theirs]
    assert await rig.pods(id=theirs[:6]) == [theirs]
    assert await rig.pods(id=ours[:6]) == [ours]
    assert len(await rig.containers(pod_sandbox_id=ours)) == 1
    assert len(await rig.containers(pod_sandbox_id=theirs)) == 1
    assert len(await rig.containers()) == 2


async def test_an_id_of_ours_hides_a_delegate_without_filters(mixed: Mixed) -> None:
    ours, theirs = await both(mixed)
    items = cri.ListPodSandboxResponse(items=mixed.other.pods.values())
    containers = cri.ListContainersResponse(containers=mixed.other.containers.values())
    mixed.other.answers |= {"ListPodSandbox": items, "ListContainers": containers}
    for wanted in (ours, ours[:8]):
        assert await mixed.ours.pods(id=wanted) == [ours]
        assert len(await mixed.ours.containers(pod_sandbox_id=wanted)) == 1
    assert await mixed.ours.pods(id=theirs[:8]) == [theirs]


async def test_a_beginning_of_an_id_may_be_of_either_but_not_of_both(mixed: Mixed) -> None:
    ours = await mixed.ours.pod("web", handler="xenpod")
    status = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="theirs"))
    mixed.other.answers["PodSandboxStatus"] = status
    assert (await mixed.ours.pod_status(ours[:10])).id == ours
    mixed.other.has_pod(ours[:10] + "f" * 54)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mixed.ours.pod_status(ours[:10])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ids of both runtimes begin with it" in str(caught.value.details())
    assert (await mixed.ours.pod_status(ours)).id == ours
    assert (await mixed.ours.pod_status(ours[:10] + "ff")).id == "theirs"


async def test_a_whole_id_costs_the_delegate_no_other_call(mixed: Mixed) -> None:
    ours, theirs = await both(mixed)
    mixed.other.answers["PodSandboxStatus"] = cri.PodSandboxStatusResponse()
    mixed.other.calls.clear()
    await mixed.ours.pod_status(ours)
    await mixed.ours.pod_status(theirs)
    assert [seen.method for seen in mixed.other.calls] == ["PodSandboxStatus"]


@pytest.mark.parametrize("filtered", [False, True])
async def test_answers_of_the_delegate_keep_unknown_fields(mixed: Mixed, filtered: bool) -> None:
    """Also if some items have to be left out."""
    await mixed.ours.pod("web", handler="xenpod")
    item = cri.PodSandbox(id=whole("a")).SerializeToString() + UNKNOWN
    twice = b"".join(b"\x0a" + bytes([len(item)]) + item for _ in range(1 + filtered))
    mixed.other.answers["ListPodSandbox"] = twice
    reply = await mixed.ours.cri.ListPodSandbox(cri.ListPodSandboxRequest())
    assert len(reply.items) == 2
    assert reply.items[1].SerializeToString() == item


async def test_false_ids_are_left_out_and_logged_once(mixed: Mixed, caplog: pytest.LogCaptureFixture) -> None:
    ours = await mixed.ours.pod("web", handler="xenpod")
    other = mixed.other
    good = other.has_pod(whole("a"))
    items = [cri.PodSandbox(), cri.PodSandbox(id=ours, runtime_handler="runc"), good, good]
    other.answers["ListPodSandbox"] = cri.ListPodSandboxResponse(items=items)
    with caplog.at_level(logging.WARNING, "cri.delegate"):
        for _ in range(3):
            reply = await mixed.ours.cri.ListPodSandbox(cri.ListPodSandboxRequest())
            found = [(one.id, one.runtime_handler) for one in reply.items]
            assert found == [(ours, "xenpod"), (good.id, "")]
    assert len([one for one in caplog.records if "left out" in one.getMessage()]) == 1


def many(count: int) -> cri.ListPodSandboxResponse:
    return cri.ListPodSandboxResponse(items=[cri.PodSandbox(id=f"{n:064x}") for n in range(count)])


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"\x0a\xff\xff", "its answer is not CRI's"),
        (b"\x0a\x03\x0a\x01\xff", "its answer is not CRI's"),  # an id that is not UTF-8
        (b"\x0a" * 3, "its answer is not CRI's"),
        (b"\x08\x01", "its answer is not CRI's"),  # items as a number
        (b"\x0a\x05\x0a\x01x\x08\x01", "its answer is not CRI's"),  # a second id as a number
        (b"\x0a\x07\x0a\x01x\x12\x02\x08\x01", "its answer is not CRI's"),  # the name in its metadata
        (many(MOST_ITEMS + 1), f"it lists more than {MOST_ITEMS} items"),
        (Status(grpc.StatusCode.INTERNAL, "a bug"), "INTERNAL: a bug"),
    ],
)
async def test_an_invalid_list_counts_as_missing(mixed: Mixed, answer: Any, cause: str) -> None:
    """The cached list stays valid, and the condition has the reason."""
    ours, theirs = await both(mixed)
    assert set(await mixed.ours.pods()) == {ours, theirs}
    mixed.other.answers["ListPodSandbox"] = answer
    assert set(await mixed.ours.pods()) == {ours, theirs}
    reply = await mixed.ours.cri.Status(cri.StatusRequest())
    said = {one.type: one for one in reply.status.conditions}
    assert not said["DelegateReady"].status and cause in said["DelegateReady"].message
    assert said["RuntimeReady"].status and said["NetworkReady"].status
    del mixed.other.answers["ListPodSandbox"]


async def test_a_too_large_list_does_not_make_the_delegate_lost(mixed: Mixed) -> None:
    """The last word stands and the reason is told; all else goes to the delegate, as before."""
    ours, theirs = await both(mixed)
    large = cri.PodSandbox(id=whole("f"), labels={"x": "y" * (17 << 20)})
    for answer in (cri.ListPodSandboxResponse(items=[large]), large_beside(mixed, ours)):
        mixed.other.answers["ListPodSandbox"] = answer
        assert set(await mixed.ours.pods()) == {ours, theirs}
        reply = await mixed.ours.cri.Status(cri.StatusRequest())
        said = {one.type: one for one in reply.status.conditions}["DelegateReady"]
        assert (said.status, said.reason) == (False, "DelegateListTooLarge")
        assert "larger than 16 MiB" in said.message
        more = await mixed.ours.pod(f"more-{len(mixed.other.pods)}", handler="runc")
        await mixed.ours.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=more))
    del mixed.other.answers["ListPodSandbox"]
    assert set(await mixed.ours.pods()) == {ours, theirs}
    reply = await mixed.ours.cri.Status(cri.StatusRequest())
    assert {one.type: one for one in reply.status.conditions}["DelegateReady"].status


def large_beside(mixed: Mixed, ours: str) -> cri.ListPodSandboxResponse:
    """A list that fits a message, but not together with ours."""
    item = cri.PodSandbox(id=whole("f"), labels={"x": ""})
    item.labels["x"] = "y" * ((16 << 20) - item.ByteSize() - 20)
    return cri.ListPodSandboxResponse(items=[item])


async def test_a_pod_of_the_delegate_too_large_for_lists_is_refused(mixed: Mixed) -> None:
    """Both runtimes' pods and containers count, including the delegate's unfinished ones."""
    config = {"annotations": {"a": "x" * (255 << 10)}}
    made = [await mixed.ours.pod(f"p{number}", handler="runc", **config) for number in range(2)]
    made.append(await mixed.ours.pod("zone", handler="xenpod", **config))
    await mixed.ours.container(made[0], "main", **config)
    with pytest.raises(grpc.aio.AioRpcError, match="its namespace has") as caught:
        await mixed.ours.container(made[0], "next", **config)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for handler in ("runc", "xenpod"):
        with pytest.raises(grpc.aio.AioRpcError, match="its namespace has") as caught:
            await mixed.ours.pod("p4", handler=handler, **config)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert set(await mixed.ours.pods()) == set(made)


def test_a_list_with_too_many_items_is_not_parsed() -> None:
    """Any bytes may stand between the items; long lists with few items are parsed."""
    for between in (b"", b"\x10\x01", b"\x12\x01x", b"\x19" + bytes(8), b"\x1d" + bytes(4)):
        assert has_more_items((b"\x0a\x00" + between) * (1 << 20))
    item = cri.ListContainersResponse(containers=[cri.Container(id="a", image_ref="x" * 1000)])
    assert not has_more_items(item.SerializeToString() * MOST_ITEMS)
    assert has_more_items(item.SerializeToString() * (MOST_ITEMS + 1))
    for lie in (b"\x0b", b"\xff" * 11, b"\x0a\x80"):
        with pytest.raises(DecodeError):
            has_more_items(b"\x1a\x80\x80\x40" + bytes(1 << 20) + lie)


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer"])
@pytest.mark.parametrize("lie", ["ours", "", "garbage"])
async def test_an_impossible_id_is_no_answer(mixed: Mixed, method: str, lie: str) -> None:
    """If it were an id of ours, the kubelet would later stop a zone instead of the delegate's pod."""
    ours, theirs = await both(mixed)
    mine = ours if method == "RunPodSandbox" else (await mixed.ours.containers(pod_sandbox_id=ours))[0]
    answers = {"ours": b"\x0a" + bytes([len(mine)]) + mine.encode(), "": b"", "garbage": b"\x0a\xff"}
    mixed.other.answers[method] = answers[lie]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "RunPodSandbox":
            await mixed.ours.pod("other", handler="runc")
        else:
            await mixed.ours.container(theirs, "second")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert str(mixed.other.path) in str(caught.value.details())


async def test_figures_of_both_are_joined(mixed: Mixed) -> None:
    ours, theirs = await both(mixed)
    pods = [cri.PodSandboxStats(attributes=cri.PodSandboxAttributes(id=theirs))]
    mixed.other.answers |= {
        "ListPodSandboxStats": cri.ListPodSandboxStatsResponse(stats=pods),
        "ListPodSandboxMetrics": cri.ListPodSandboxMetricsResponse(
            pod_metrics=[cri.PodSandboxMetrics(pod_sandbox_id=theirs)]
        ),
        "ListContainerStats": cri.ListContainerStatsResponse(
            stats=[cri.ContainerStats(attributes=cri.ContainerAttributes(id=whole("e")))]
        ),
    }
    stats = await mixed.ours.cri.ListPodSandboxStats(cri.ListPodSandboxStatsRequest())
    assert [one.attributes.id for one in stats.stats] == [ours, theirs]
    metrics = await mixed.ours.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())
    assert [one.pod_sandbox_id for one in metrics.pod_metrics] == [ours, theirs]
    containers = await mixed.ours.cri.ListContainerStats(cri.ListContainerStatsRequest())
    assert len(containers.stats) == 2 and containers.stats[1].attributes.id == whole("e")
    filtered = cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(id=ours))
    assert len((await mixed.ours.cri.ListPodSandboxStats(filtered)).stats) == 1


async def test_figures_may_take_longer_than_lists(mixed: Mixed) -> None:
    await mixed.ours.cri.ListPodSandboxStats(cri.ListPodSandboxStatsRequest())
    await mixed.ours.pods()
    (figures,), lists = mixed.other.asked("ListPodSandboxStats"), mixed.other.asked("ListPodSandbox")
    assert figures.remaining is not None and figures.remaining > 120
    assert lists and all(one.remaining is not None and one.remaining < 70 for one in lists)


async def test_hanging_figures_are_not_awaited_again_at_once(short_path: Path, other: OtherRuntime) -> None:
    """A hanging process delays all of containerd's figures, but not its lists."""
    async with in_front_of(short_path, other.path, timeout=Seconds(0.5)) as ours:
        await becomes_ready(ours)
        container = await ours.started(await ours.pod("web", handler="xenpod"))
        other.hanging |= {"ListContainerStats"}
        for _ in range(3):
            reply = await ours.cri.ListContainerStats(cri.ListContainerStatsRequest())
            assert [one.attributes.id for one in reply.stats] == [container]
            streamed = ours.cri.StreamContainerStats(cri.StreamContainerStatsRequest())
            found = [one.attributes.id async for batch in streamed for one in batch.container_stats]
            assert found == [container]
        assert len(other.asked("ListContainerStats")) == 1
        assert other.asked("ListPodSandbox")


async def test_a_delegate_without_figures_is_asked_once(mixed: Mixed) -> None:
    ours = await mixed.ours.pod("web", handler="xenpod")
    for _ in range(3):
        reply = await mixed.ours.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())
        assert [one.pod_sandbox_id for one in reply.pod_metrics] == [ours]
    assert len(mixed.other.asked("ListPodSandboxMetrics")) == 1


async def test_descriptors_by_name_once(mixed: Mixed) -> None:
    alone = await mixed.ours.cri.ListMetricDescriptors(cri.ListMetricDescriptorsRequest())
    known = alone.descriptors[0].name
    mixed.other.answers["ListMetricDescriptors"] = cri.ListMetricDescriptorsResponse(
        descriptors=[cri.MetricDescriptor(name=name, help="theirs") for name in (known, "new", "new")]
    )
    found = await mixed.ours.cri.ListMetricDescriptors(cri.ListMetricDescriptorsRequest())
    assert [one.name for one in found.descriptors] == [*(one.name for one in alone.descriptors), "new"]
    assert found.descriptors[0].help != "theirs"


async def test_labels_of_common_metrics_are_in_our_order(mixed: Mixed) -> None:
    """Values come without names, in the order of descriptors, and the descriptors are ours."""
    ours, theirs = await both(mixed)
    alone = await mixed.ours.cri.ListMetricDescriptors(cri.ListMetricDescriptorsRequest())
    first, second = alone.descriptors[0], alone.descriptors[1]
    assert list(first.label_keys)[:6] == ["container", "id", "image", "name", "namespace", "pod"]
    mixed.other.answers["ListMetricDescriptors"] = cri.ListMetricDescriptorsResponse(
        descriptors=[
            cri.MetricDescriptor(name=first.name, label_keys=["pod", "namespace", "container"]),
            cri.MetricDescriptor(name=second.name, label_keys=["pod", "unheard"]),
            cri.MetricDescriptor(name="new", label_keys=["pod", "unheard"]),
        ]
    )
    labelled = [
        cri.Metric(name=first.name, label_values=["web", "default", "main"]),
        cri.Metric(name=first.name, label_values=["too", "few"]),
        cri.Metric(name=second.name, label_values=["web", "x"]),
        cri.Metric(name="new", label_values=["web", "x"]),
    ]
    container = cri.ContainerMetrics(container_id=whole("e"), metrics=labelled)
    pod = cri.PodSandboxMetrics(pod_sandbox_id=theirs, container_metrics=[container], metrics=labelled)
    mixed.other.answers["ListPodSandboxMetrics"] = cri.ListPodSandboxMetricsResponse(pod_metrics=[pod])
    listed = await mixed.ours.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())
    streamed = [
        one
        async for part in mixed.ours.cri.StreamPodSandboxMetrics(cri.StreamPodSandboxMetricsRequest())
        for one in part.pod_sandbox_metrics
    ]
    expected = [(first.name, ["main", "", "", "", "default", "web"]), ("new", ["web", "x"])]
    for found in (listed.pod_metrics, streamed):
        (adapted,) = [one for one in found if one.pod_sandbox_id == theirs]
        for metrics in (adapted.metrics, adapted.container_metrics[0].metrics):
            assert [(one.name, list(one.label_values)[:6]) for one in metrics] == expected
    assert ours in [one.pod_sandbox_id for one in listed.pod_metrics]
