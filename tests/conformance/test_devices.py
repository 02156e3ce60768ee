"""Block devices of the host in containers, on both toolstacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.protect.block_device import block_device, is_free, written
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with block_device(tmp_path_factory.mktemp("device")) as device:
        yield device


@pytest.mark.parametrize("privileged", [False, True])
async def test_a_block_volume_is_attached_written_and_detached(
    stage: SuiteStage, shared_pod: Pod, device: Path, privileged: bool
) -> None:
    """While the pod runs; a second pod does not get the device."""
    security = cri.LinuxContainerSecurityContext(
        privileged=privileged, namespace_options=cri.NamespaceOption(pid=cri.CONTAINER)
    )
    wanted = [cri.Device(host_path=str(device), container_path="/dev/volume", permissions="mrw")]
    more: dict[str, Any] = {"devices": wanted, "linux": cri.LinuxContainerConfig(security_context=security)}
    container = await stage.started(shared_pod, **more)
    script = (
        "echo by the pod | dd of=/dev/volume bs=512 conv=notrunc,fsync 2>/dev/null; head -n 1 /dev/volume"
    )
    assert await stage.output(container, script) == "by the pod"
    async with stage.pod("other") as other:
        with refused("FAILED_PRECONDITION", f"zone {shared_pod.id} has it"):
            await stage.create(other, devices=wanted)
    await stage.client.runtime.RemoveContainer(
        cri.RemoveContainerRequest(container_id=container), timeout=600
    )
    assert is_free(device) and written(device) == b"by the pod\n"
