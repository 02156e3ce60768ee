"""Sizes of zones: from pods, handlers and profiles; and impossible sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import protect.config
from cri.checks.handlers import trouble
from cri.config import ANNOTATIONS, MEMORY, VCPUS, CriConfig, HandlerConfig
from daemonkit.config import Bytes, load_config
from daemonkit.faults import Invalid
from protect.server.host import bounds
from tests.support.cri.cri_node import Rig, node_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

MIB = 1 << 20
SIZED = HandlerConfig(memory=Bytes(512 * MIB), vcpus=3)


async def sizes(node: Rig, handler: str = "sized") -> dict[str, tuple[int, int]]:
    """Memory in MiB and vCPUs of the zones of four pods."""
    resources = cri.LinuxContainerResources
    asks: Mapping[str, cri.PodSandboxConfig] = {
        "plain": cri.PodSandboxConfig(),
        "memory": cri.PodSandboxConfig(
            linux=cri.LinuxPodSandboxConfig(resources=resources(memory_limit_in_bytes=100 * MIB))
        ),
        "cpu": cri.PodSandboxConfig(
            linux=cri.LinuxPodSandboxConfig(resources=resources(cpu_quota=50_000, cpu_period=100_000))
        ),
        "noted": cri.PodSandboxConfig(annotations={MEMORY: "64Mi", VCPUS: "5"}),
    }
    found = {}
    for name, ask in asks.items():
        pod = await node.pod(name, handler=handler, linux=ask.linux, annotations=ask.annotations)
        asked = node.protect.zone_requests[pod].resources
        found[name] = (asked.memory_bytes // MIB, asked.vcpus)
    return found


async def test_a_handlers_size_is_for_pods_without_a_limit(tmp_path: Path) -> None:
    sized = replace(SIZED, annotations=ANNOTATIONS)
    config = replace(node_config(tmp_path), handlers={"xenpod": HandlerConfig(), "sized": sized})
    overhead = config.zone.memory_overhead // MIB
    async with rig(tmp_path, config=config) as node:
        assert await sizes(node) == {
            "plain": (512, 3),
            "memory": (100 + overhead, 3),
            "cpu": (512, 1),
            "noted": (64, 5),
        }


async def test_a_handler_without_a_size_uses_the_profile(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        found = await sizes(node, "xenpod")
    assert (found["plain"], found["memory"][1], found["cpu"][0]) == ((0, 0), 0, 0)


async def test_an_update_does_not_ask_for_the_handlers_size(tmp_path: Path) -> None:
    """The handler's size counts when a zone is made; the file may differ by now."""
    config = replace(node_config(tmp_path), handlers={"xenpod": SIZED})
    async with rig(tmp_path, config=config) as node:
        pod = await node.pod()
        request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod)
        await node.cri.UpdatePodSandboxResources(request)
        (sent,) = node.protect.resizes
        assert (sent.resources.memory_bytes, sent.resources.vcpus) == (0, 0)


async def test_removed_limit_grows_the_zone_to_its_handlers_size(tmp_path: Path) -> None:
    """The kubelet reports the limit of a control group without a limit: about 2**63."""
    config = replace(node_config(tmp_path), handlers={"xenpod": HandlerConfig(memory=Bytes(300 * MIB))})
    async with rig(tmp_path, config=config) as node:
        limits = cri.LinuxContainerResources(memory_limit_in_bytes=100 * MIB)
        pod = await node.pod(linux=cri.LinuxPodSandboxConfig(resources=limits))
        limits.memory_limit_in_bytes = 0x7FFF_FFFF_FFFF_F000
        request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod, resources=limits)
        await node.cri.UpdatePodSandboxResources(request)
        sizes = [(sent.resources.memory_bytes // MIB, sent.only_more) for sent in node.protect.resizes]
        assert sizes == [(300, True), (0, False)]
        await node.cri.UpdatePodSandboxResources(request)
        assert [sent.resources.memory_bytes for sent in node.protect.resizes[2:]] == [0]


async def test_pod_without_a_limit_gets_its_handlers_size(tmp_path: Path) -> None:
    limits = cri.LinuxContainerResources(memory_limit_in_bytes=0x7FFF_FFFF_FFFF_F000)
    async with rig(tmp_path) as node:
        pod = await node.pod(linux=cri.LinuxPodSandboxConfig(resources=limits))
        assert node.protect.zone_requests[pod].resources.memory_bytes == 0


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ('reserve = "request"', ("key 'handlers.fast.reserve'", "what zones begin with")),
        ('reserve = "all"', ("key 'handlers.fast.reserve'", "'all'", "limit")),
        ("memory = -1", ("memory", "negative")),
        ('memory = "lots"', ("memory", "lots")),
        ("vcpus = -1", ("key 'handlers.fast.vcpus'", "less than 0")),
        ('vcpus = "2"', ("vcpus", "integer")),
    ],
)
def test_an_impossible_handler_ends_the_start(tmp_path: Path, text: str, causes: tuple[str, ...]) -> None:
    path = tmp_path / "cri.toml"
    path.write_text(f"[handlers.fast]\n{text}\n")
    with pytest.raises(Invalid) as raised:
        load_config(CriConfig, path)
    assert all(part in str(raised.value) for part in (str(path), "handlers.fast", *causes))


def test_a_handler_says_its_size_in_the_usual_words(tmp_path: Path) -> None:
    path = tmp_path / "cri.toml"
    path.write_text('[handlers.xenpod]\nmemory = "512MiB"\nvcpus = 3\nreserve = "limit"\n')
    assert load_config(CriConfig, path).handlers == {"xenpod": SIZED}


def test_a_handlers_size_is_within_its_profile() -> None:
    profile = protect.config.Profile(memory_min=Bytes(100 * MIB), memory_max=Bytes(300 * MIB), vcpus_max=2)
    config = protect.config.ProtectdConfig(profiles={"small": profile})
    host = pb.InfoResponse(profiles=config.profile_names(), profile_bounds=bounds(config))
    small = HandlerConfig(profile="small")
    for fits in (
        small,
        replace(small, memory=Bytes(100 * MIB), vcpus=2),
        replace(small, memory=Bytes(300 * MIB)),
    ):
        assert trouble(fits, host) is None
    for unfit, key, cause in (
        (replace(small, memory=Bytes(99 * MIB)), "memory", "99 MiB is not between the 100 and 300 MiB"),
        (replace(small, memory=Bytes(301 * MIB)), "memory", "memory of 301 MiB"),
        (replace(small, vcpus=3), "vcpus", "3 vcpus are more than the 2"),
        (HandlerConfig(profile="none"), "profile", "no profile 'none' (there are: default, small)"),
    ):
        wrong = trouble(unfit, host)
        assert wrong is not None and wrong.key == key and cause in wrong.cause
    older = pb.InfoResponse(profiles=["small"])
    assert trouble(replace(small, memory=Bytes(1)), older) is None


async def test_status_leaves_out_a_handler_with_an_impossible_size(tmp_path: Path) -> None:
    config = replace(node_config(tmp_path), handlers={"xenpod": HandlerConfig(), "sized": SIZED})
    async with rig(tmp_path, config=config) as node:
        node.protect.bounds = [
            pb.ProfileBounds(name="default", memory_min_bytes=MIB, memory_max_bytes=256 * MIB, vcpus_max=4)
        ]
        reply = await node.cri.Status(cri.StatusRequest(verbose=True))
        assert [handler.name for handler in reply.runtime_handlers] == ["", "xenpod"]
        assert "memory of 512 MiB is not between the 1 and 256 MiB of its profile" in reply.info["handlers"]
