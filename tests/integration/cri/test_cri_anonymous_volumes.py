"""VOLUMEs of images over both daemons: deaths of daemons, and the end of the files."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cri.conformance import zone_folder
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage, StageSettings
from tests.support.waiting import until
from tools.localnode import images, layers, registry
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

NAME = "volumes.test/seeded:1"
CONTENT = layers.layer(
    LayerEntry("vol", 0o700, uid=7, gid=8), LayerEntry("vol/seed", 0o600, b"seed\n", uid=7, gid=8)
)


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings({"handlers": {"xenpod": {"scratch_size": "256MiB"}}})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seeded(module_stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    async with registry.serve_registry(tmp_path_factory.mktemp("volumes")) as address:
        run = {"Cmd": ["sh"], "Volumes": {"/vol": {}, "/new": {}}}
        images.push(address, NAME.partition("/")[2], PushedImage([layers.busybox(), CONTENT], run))
        registry.mirror(module_stage.node.certs, NAME.partition("/")[0], address)
        return await module_stage.client.pull(NAME)


async def test_volumes_outlive_both_daemons_between_create_and_start(stage: Stage, seeded: str) -> None:
    pod = await stage.client.run_pod("volumes")
    first = await stage.create(pod, image=cri.ImageSpec(image=seeded))
    await stage.node.protectd.daemon.crash()
    await stage.revive()
    await stage.client.start(first)
    assert await stage.output(first, "cat /vol/seed; touch /vol/a /new/b; ls /vol /new") == (
        "seed\n/new:\nb\n\n/vol:\na\nseed"
    )
    second = await stage.create(pod, name="second", image=cri.ImageSpec(image=seeded))
    await stage.node.daemon.crash()
    await stage.revive()
    await stage.client.start(second)
    assert await stage.output(second, "cat /vol/seed; stat -c '%a %u' /vol; ls /new") == "seed\n700 7"
    assert await stage.output(first, "ls /vol /new") == "/new:\nb\n\n/vol:\na\nseed"


async def test_nothing_of_a_removed_container_s_volumes_is_left(stage: Stage, seeded: str) -> None:
    pod = await stage.client.run_pod("volumes")
    container = await stage.started(pod, image=cri.ImageSpec(image=seeded))
    await stage.output(container, "dd if=/dev/zero of=/vol/big bs=1M count=4; cp /vol/big /new/")
    agent = Path("/proc") / (zone_folder(stage.node, pod) / "pid").read_text().split()[0]
    scratch = agent / "root/run/xenpod/scratch"
    assert list((scratch / "layer").glob("*/volumes/*/upper/big"))
    await stage.client.remove_container(container)
    assert "/containers/" not in (agent / "mounts").read_text()
    assert not list((agent / "root/run/xenpod/containers").iterdir())

    async def emptied() -> bool:
        return not any((*(scratch / "layer").iterdir(), *(scratch / "trash").iterdir()))

    await until(emptied)
