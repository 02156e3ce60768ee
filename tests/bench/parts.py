"""Measures two parts of xenpod-cri: the peer-credential proxy, and the cache of encoded answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from cri.rpc import container_view, sandbox_view
from cri.rpc.rendered import Rendered
from cri.state import rows
from cri.state.container import Container
from cri.state.sandbox import Sandbox
from daemonkit.rpc.channels import channel
from tests.bench.measure import Samples
from tests.bench.memory import PROC
from tests.bench.sides import Side
from xenpod_proto.cri.v1 import runtime_pb2 as pb
from xenpod_proto.cri.v1.runtime_pb2_grpc import RuntimeServiceStub

THROUGH = "Version, through the proxy"
PAST = "Version, past the proxy"
ENCODED = ("ListPodSandbox", "ListContainers", "ContainerStatus")
ANEW, KEPT = "encoded anew", "kept encoded"
_CALLS = 1000
_ENCODINGS = 100
_WARM_UP = 20
_TIMEOUT = 60.0

R = TypeVar("R", Sandbox, Container)

Encode = Callable[[], bytes]


async def proxy(side: Side, samples: Samples) -> None:
    """Seconds of the smallest RPC through the proxy, and straight to the gRPC server behind it, in turns."""
    async with channel(_server_socket(side.daemons)) as link:
        stubs = {THROUGH: side.client.runtime, PAST: RuntimeServiceStub(link)}
        for number in range(-_WARM_UP, _CALLS):
            for step, stub in stubs.items():
                kept = samples if number >= 0 else Samples()
                await kept.time(step, stub.Version(pb.VersionRequest(), timeout=_TIMEOUT))


def encodings(count: int, samples: Samples) -> None:
    """Seconds to encode the answers about ``count`` pods of one container: anew, and from kept bytes."""
    for rpc, ways in _encodings(count).items():
        anew, kept = ways.values()
        # Labels have no order, and the bytes may differ.
        if len(anew()) != len(kept()):
            raise RuntimeError(f"{rpc}: what is kept is not the whole answer")
        for _ in range(_ENCODINGS):
            for way, encode in ways.items():
                begun = time.perf_counter()
                encode()
                samples.seconds[figure(rpc, way)].append(time.perf_counter() - begun)


def figure(rpc: str, way: str) -> str:
    """The name of a figure of ``encodings``."""
    return f"{rpc}, {way}"


class _Source(Generic[R]):
    """A source of constant records."""

    version = 1

    def __init__(self, records: Iterable[R]) -> None:
        self.records: list[R] = list(records)

    def visible(self) -> list[R]:
        return self.records


def _encodings(count: int) -> Mapping[str, Mapping[str, Encode]]:
    sandboxes = _Source(map(_sandbox, range(count)))
    containers = _Source(map(_container, range(count)))
    some = containers.records[0]
    statuses = Rendered(containers, container_view.status)

    def pod_list() -> bytes:
        return pb.ListPodSandboxResponse(
            items=map(sandbox_view.item, sandboxes.visible())
        ).SerializeToString()

    def container_list() -> bytes:
        return pb.ListContainersResponse(
            containers=map(container_view.item, containers.visible())
        ).SerializeToString()

    def status() -> bytes:
        return pb.ContainerStatusResponse(status=container_view.status(some)).SerializeToString()

    return {
        "ListPodSandbox": {ANEW: pod_list, KEPT: Rendered(sandboxes, sandbox_view.item).every},
        "ListContainers": {ANEW: container_list, KEPT: Rendered(containers, container_view.item).every},
        "ContainerStatus": {ANEW: status, KEPT: lambda: statuses.one(some)},
    }


def _sandbox(number: int) -> Sandbox:
    """A sandbox with a daemon's and the kubelet's fields."""
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=f"web-{number}", uid=f"{number:036}", namespace="default"),
        labels=_labels(number),
        annotations={
            "kubernetes.io/config.seen": "2026-01-01T00:00:00Z",
            "kubernetes.io/config.source": "api",
        },
    )
    chain = {"name": "net", "version": "1.0.0", "source": "10-net.conflist", "plugins": []}
    place = {"container_id": "", "netns": "", "interface": "eth0", "chain": chain, "args": {}}
    return rows.to_sandbox(
        (
            f"{number:064}",
            "ready",
            number,
            "xenpod",
            config.SerializeToString(),
            json.dumps(place),
            "",
            "",
            "[]",
        )
    )


def _container(number: int) -> Container:
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image="registry.example/web:1"),
        labels=_labels(number) | {"io.kubernetes.container.name": "main"},
        annotations={
            "io.kubernetes.container.hash": "5d4c3b2a",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        mounts=[pb.Mount(host_path=f"/var/lib/kubelet/{n}", container_path=f"/etc/{n}") for n in range(4)],
    )
    image = (f"sha256:{number:064}", f"registry.example/web@sha256:{number:064}")
    process = json.dumps({"user": {"uid": 0, "gid": 0}, "env": [f"VARIABLE_{n}=value" for n in range(20)]})
    started = ("/logs/0.log", process, 15, None, None, None, None, "[]")
    name = f"{number:064}"
    return rows.to_container((name, name, "running", 1, 2, config.SerializeToString(), *image, *started))


def _labels(number: int) -> dict[str, str]:
    return {
        "app": "web",
        "io.kubernetes.pod.name": f"web-{number}",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": f"{number:036}",
    }


def _server_socket(pids: Collection[int]) -> Path:
    """The gRPC server's own socket without a name: the proxy connects by its descriptor."""
    for pid in pids:
        for link in (PROC / str(pid) / "fd").iterdir():
            target = os.readlink(link)
            if "/.cri.sock.inner/" in target:
                return link
    raise RuntimeError("no daemon has a server behind cri.sock")
