"""docs/quickstart.md, command by command, with its files: only the folder and the registry are the test's."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import json_format

from tests.support.cri.events import Ends
from tests.support.local_run import ROOT, Run, leftovers, nothing_left, remove_pods, running
from tools.docgen.blocks import blocks
from tools.localnode import images, registry
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = pytest.mark.root

PAGE = (ROOT / "docs/quickstart.md").read_text()
EXAMPLES = ROOT / "docs/examples"
FOLDER = "/tmp/xenpod"
IMAGE = "docker.io/library/busybox:1.36"
START, *COMMANDS = blocks(PAGE, "sh")
LOG = blocks(PAGE, "")[0]


@pytest.fixture
async def run(short_path: Path) -> AsyncIterator[Run]:
    """The daemons as the page starts them, with a registry of ours for docker.io."""
    folder = short_path / "n"
    async with registry.serve_registry(short_path / "registry") as address:
        await asyncio.to_thread(images.push, address, IMAGE.partition("/")[2], images.busybox())
        registry.mirror(folder / "certs.d", "docker.io", address)
        async with running(folder, "make", *START.replace(FOLDER, str(folder)).split()) as served:
            yield served
    if leftovers(folder):
        await remove_pods(folder)
    await nothing_left(folder)


def examples(folder: Path, target: Path) -> Path:
    """The example files with this folder in place of the page's folder."""
    target.mkdir()
    for path in EXAMPLES.glob("*.*"):
        if path.suffix in (".json", ".yaml"):
            (target / path.name).write_text(path.read_text().replace(FOLDER, str(folder)))
    return target


def test_the_page_shows_the_files() -> None:
    shown = [json.loads(block) for block in blocks(PAGE, "json")]
    assert shown == [json.loads((EXAMPLES / name).read_text()) for name in ("pod.json", "container.json")]


async def test_the_files_make_a_pod(run: Run, short_path: Path) -> None:
    """Without crictl, by crictl's messages."""
    files = examples(short_path / "n", short_path / "examples")
    pod = json_format.Parse((files / "pod.json").read_text(), cri.PodSandboxConfig())
    container = json_format.Parse((files / "container.json").read_text(), cri.ContainerConfig())
    await run.client.pull(IMAGE)
    reply = await run.client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=pod))
    made = Pod(reply.pod_sandbox_id, pod)
    request = cri.CreateContainerRequest(pod_sandbox_id=made.id, config=container, sandbox_config=pod)
    name = (await run.client.runtime.CreateContainer(request)).container_id
    ends = Ends(run.client)
    await run.client.start(name)
    assert (await run.client.exec(name, "touch", "/tmp/go")).exit_code == 0
    await ends.of(name)
    await ends.close()
    log = (Path(pod.log_directory) / container.log_path).read_text()
    assert [line.split(" ", 3)[3] for line in log.splitlines()] == LOG.splitlines()
    await run.client.remove_pod(made.id)
    await run.client.remove_image(IMAGE)


@pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH")
async def test_the_commands_of_the_page(run: Run, short_path: Path) -> None:
    folder = short_path / "n"
    files = examples(folder, short_path / "examples")
    script = "".join(COMMANDS).replace(FOLDER, str(folder)).replace("docs/examples", str(files))
    process = await asyncio.create_subprocess_exec(
        "bash", "-eux", "-o", "pipefail", cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, trace = await asyncio.wait_for(process.communicate(script.encode()), 240)
    said = out.decode()
    assert process.returncode == 0, f"{said}\n{trace.decode()}"
    assert LOG in said, "the log as the page shows it"
    assert "RuntimeName:  xenpod" in said and "Ready" in said and "Running" in said
    assert f"Deleted: {IMAGE}" in said
    assert await run.client.pods() == []
