"""Large images that are passed between the two stores, in chunks, and when the daemon is killed."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import HOST, PATIENCE, ZONE, Mixed
from tests.support.images import registry as registries
from tests.support.images.images import BuiltImage, Layer, build, packed
from tests.support.images.registry import Registry
from tools.localnode import layers
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, needs_containerd, pytest.mark.asyncio(loop_scope="module")]

LAYER = 128 << 20
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_NOW = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


def large() -> BuiltImage:
    """Build an image with a large layer that is not compressed, and would not shrink."""
    run = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]}
    return build([packed(layers.busybox()), packed(Layer().file("data", os.urandom(LAYER)).tar(), "")], run)


async def pulled(mixed: Mixed, registry: Registry, kind: str, tag: str) -> BuiltImage:
    """Pull a large image on one side."""
    image = large()
    registry.push("large", tag, image)
    pod = await mixed.pod(f"first-{tag}", kind)
    spec = cri.ImageSpec(image=f"{registry.netloc}/large:{tag}")
    request = cri.PullImageRequest(image=spec, sandbox_config=pod.config)
    assert (await mixed.client.image.PullImage(request, timeout=PATIENCE)).image_ref == image.id
    return image


@pytest.mark.parametrize(("has", "kind"), [(HOST, ZONE), (ZONE, HOST)])
async def test_a_layer_is_never_in_memory_whole(
    mixed: Mixed, registry: Registry, has: str, kind: str
) -> None:
    image = await pulled(mixed, registry, has, f"memory-{kind}")
    pod = await mixed.pod(f"second-{kind}", kind)
    assert mixed.node.daemon.process is not None
    status = Path(f"/proc/{mixed.node.daemon.process.pid}")
    # Sets the peak back (proc(5)).
    (status / "clear_refs").write_text("5")
    before = _figure(status, _NOW)
    await mixed.created(pod, image=cri.ImageSpec(image=image.id))
    assert _figure(status, _PEAK) - before < LAYER / 2


def _figure(process: Path, which: re.Pattern[str]) -> int:
    found = which.search((process / "status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize(("has", "kind"), [(HOST, ZONE), (ZONE, HOST)])
async def test_a_daemon_that_is_killed_on_the_way_brings_it_after_its_return(
    mixed: Mixed, registry: Registry, has: str, kind: str
) -> None:
    image = await pulled(mixed, registry, has, f"killed-{kind}")
    pod = await mixed.pod(f"second-{kind}", kind)
    creating = asyncio.create_task(mixed.created(pod, image=cri.ImageSpec(image=image.id)))
    # Somewhere on the way; on a machine that is quicker than that it has arrived.
    await asyncio.wait([creating], timeout=0.3)
    await mixed.node.daemon.crash()
    with suppress(grpc.aio.AioRpcError):
        await creating
    await mixed.node.daemon.start()
    container = await mixed.started(pod, image=cri.ImageSpec(image=image.id), name="again")
    assert await mixed.output(container, "wc -c </data") == str(LAYER)
