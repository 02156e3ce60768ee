"""Draws the dashboard from a node at work: real daemons, Debian's Prometheus, each panel's own query.

``python -m tests.support.observe.dashboard PICTURE [SECONDS]``, as root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio

from tests.support.cri.cri_watch import Watched, watched
from tests.support.observe.prometheus import Prometheus, metrics_address, prometheus
from tools.docgen.dashboard import PanelSeries, draw, key, legend
from xenpod_proto.cri.v1 import runtime_pb2 as cri

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "observability" / "dashboard.json"
ALERTS = DASHBOARD.with_name("alerts.yaml")

_ON = {"metrics": {"address": "127.0.0.1:0"}, "audit": {"to": "file"}}
_STEP = 2
_WINDOW = "20s"
_NAMES = ("shop/web", "shop/cart", "shop/search", "batch/report", "batch/index", "ops/probe")
_SCRIPTS = (
    "while true; do i=0; while [ $i -lt {work} ]; do i=$((i+1)); done; echo served $i; sleep 0.3; done",
    "head -c {memory} /dev/zero > /dev/shm/held; while true; do echo waiting; sleep 2; done",
)


def panels() -> list[Mapping[str, Any]]:
    """The dashboard's panels."""
    found: list[Mapping[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


async def main(picture: Path, seconds: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="xenpod-dashboard-"))
    try:
        async with watched(folder, _ON, {**_ON, "fake": {"memory": "16GiB"}}) as stage:
            logs = {"protectd": stage.node.protectd.daemon.log, "xenpod-cri": stage.node.daemon.log}
            targets = {job: metrics_address(log) for job, log in logs.items()}
            async with prometheus(folder, targets, ALERTS) as served:
                begun = time.time()
                await work(stage, begun + seconds)
                data = {key(panel): await series(served, panel, seconds) for panel in panels()}
        picture.write_text(draw(panels(), data, seconds))
    finally:
        shutil.rmtree(folder)


async def series(served: Prometheus, panel: Mapping[str, Any], seconds: float) -> list[PanelSeries]:
    """What the panel's queries return for the last ``seconds``."""
    end = time.time()
    found = []
    for target in panel.get("targets", []):
        expression = target["expr"].replace("$node", ".*").replace("$__rate_interval", _WINDOW)
        asked = {"query": expression, "start": str(end - seconds), "end": str(end), "step": str(_STEP)}
        for one in (await served.get("query_range", **asked))["result"]:
            points = tuple((float(at) - end, float(value)) for at, value in one["values"] if value != "NaN")
            if points:
                found.append(PanelSeries(legend(target["legendFormat"], one["metric"]), points))
    return found


async def work(stage: Watched, until: float) -> None:
    """Pods come, one of them goes, people look into them, and some of what they try fails."""
    chance = random.Random(14)
    running: list[str] = []
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(_NAMES):
            group.create_task(_pod(stage, name, _SCRIPTS[number % 2], number, running))
            await asyncio.sleep(min(12.0, max(0.0, until - time.time())))
        while time.time() < until:
            container = chance.choice(running)
            group.create_task(_look(stage, container, chance.randint(1, 8)))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stage.client.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id="none"))
            if chance.random() < 0.3:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stage.client.pull("127.0.0.1:9/none:1")
            await asyncio.sleep(chance.uniform(0.5, 3.0))


async def _pod(stage: Watched, name: str, script: str, number: int, running: list[str]) -> None:
    namespace, _, short = name.partition("/")
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=short, namespace=namespace, uid=short),
        log_directory=str(stage.node.logs / short),
    )
    request = cri.RunPodSandboxRequest(config=config)
    pod = (await stage.client.runtime.RunPodSandbox(request, timeout=120)).pod_sandbox_id
    command = ["sh", "-c", script.format(work=20000 * (number + 1), memory=(number + 1) * (8 << 20))]
    create = cri.CreateContainerRequest(
        pod_sandbox_id=pod,
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=stage.image),
            command=command,
            log_path="main.log",
        ),
    )
    container = (await stage.client.runtime.CreateContainer(create, timeout=120)).container_id
    await stage.client.start(container)
    running.append(container)


async def _look(stage: Watched, container: str, seconds: int) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stage.client.exec(container, "sleep", str(seconds))


if __name__ == "__main__":
    wanted = float(sys.argv[2]) if len(sys.argv) > 2 else 240.0
    asyncio.run(main(Path(sys.argv[1]), wanted))
