"""Answers of real API servers to the driver: recorded once, replayed request by request.

``XENPOD_KUBERNETES=... python -m tests.support.dra.recorded FOLDER`` records the answers of the
kube-apiserver in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from cluster.dra.claims.claim import Allocation, WantedClaim, allocation
from cluster.dra.config import DraConfig
from cluster.dra.kube.api import ClusterApi
from cluster.dra.model import HostDevice, Promise, ZoneMemory
from cluster.dra.slices.document import devices, shared_device, unclaimed_device
from cluster.dra.slices.keeper import SliceKeeper
from daemonkit.config import Bytes
from tests.support.cluster.api import Api
from tests.support.cluster.control_plane import api_server
from tests.support.cluster.programs import program
from tests.support.dra.plugin_host import HeldHost
from tests.support.images.http_server import HttpServer
from tests.support.labels.api_server import NAME, TOKEN, kubeconfig

Json = Any
GIB = 1 << 30
DOM0_MEMORY = Bytes(4 << 20)
CARD = HostDevice("card.0", "0000:65:00.0", readonly=False, zone_id="")
_DEVICE = re.compile(r"memory-(?:shared-)?[0-9a-f]{8}")
_KEPT = {"name", "namespace", "resourceVersion", "ownerReferences"}
_ON = "--feature-gates=DynamicResourceAllocation=true"
_BETA = "--runtime-config=resource.k8s.io/v1beta1=true"
SERVERS = {
    "1.32": (_ON, _BETA),
    "1.33": (_ON, f"{_BETA},resource.k8s.io/v1beta2=true"),
    "1.36": (
        "--feature-gates=DRAConsumableCapacity=true,DRADeviceTaints=true,DRANodeAllocatableResources=true",
    ),
}
"""Flags of kube-apiserver for claims, by release."""


@dataclass
class Recording:
    """Requests and their answers, in order; device names, which are random, by number."""

    exchanges: list[dict[str, Json]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    unexpected: list[Json] = field(default_factory=list)
    _next: int = 0

    def record(self, method: str, path: str, body: Json, status: int, answer: Json) -> None:
        one = {"method": method, "path": path, "body": body, "status": status, "answer": _trimmed(answer)}
        self.exchanges.append(self._numbered(one))

    def replay(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """The answer to the next request; 500 for an unknown request, which is remembered."""
        asked = self._numbered({"method": method, "path": path, "body": body})
        wanted = self.exchanges[self._next] if self._next < len(self.exchanges) else {}
        if asked != {key: wanted.get(key) for key in asked}:
            self.unexpected.append(asked)
            return 500, {"kind": "Status", "message": f"not recorded: {method} {path}"}
        self._next += 1
        return wanted["status"], self._named(wanted["answer"])

    @property
    def complete(self) -> bool:
        return self._next == len(self.exchanges) and not self.unexpected

    def _numbered(self, value: Json) -> Json:
        def number(match: re.Match[str]) -> str:
            if match[0] not in self.names:
                self.names.append(match[0])
            return f"memory-#{self.names.index(match[0])}"

        return json.loads(_DEVICE.sub(number, json.dumps(value)))

    def _named(self, value: Json) -> Json:
        return json.loads(
            re.sub(r"memory-#(\d+)", lambda match: self.names[int(match[1])], json.dumps(value))
        )


@contextlib.contextmanager
def served(recording: Recording, folder: Path, real: Api | None = None) -> Iterator[Path]:
    """Replay a recording, or record what a real API server answers: a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802
            self._answer(None)

        def do_POST(self) -> None:  # noqa: N802
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        do_PUT = do_POST  # noqa: N815

        def _answer(self, body: Json) -> None:
            if real is None:
                status, answer = recording.replay(self.command, self.path, body)
            else:
                status, answer = _forwarded(real, self.command, self.path, body)
                recording.record(self.command, self.path, body, status, answer)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with HttpServer(Handler) as server:
        yield kubeconfig(folder / "kubeconfig", f"http://{server.netloc}", TOKEN)


@dataclass
class Story:
    """What the driver asks of an API server, from the first slice to the second claim's device."""

    config: DraConfig
    held: list[Promise] = field(default_factory=list)
    mode: str = ""
    slices: list[list[dict[str, Json]]] = field(default_factory=list)

    async def first(self) -> str:
        """Publish the device for a claim."""
        self.keeper = self._keeper()
        self.keeper.show(ZoneMemory(8 * GIB, 4 * GIB), {"toolstack": "libxl", "pv": True})
        there = await self._once()
        shared = shared_device(there)
        self.mode = "shared" if shared else "split"
        return shared or unclaimed_device(there)

    async def second(self, claim_uid: str) -> Allocation:
        """Prepare the claim, offer what is next, lose protectd, and start again."""
        found = await ClusterApi(self.config.kubeconfig).claim("default", "zone")
        assert found is not None
        wanted = WantedClaim(
            "default", "zone", claim_uid, self.config.driver, self.config.node_name, self.config.sizes
        )
        allocated = allocation(wanted, found)
        self.held.append(Promise(claim_uid, allocated.total_bytes, (), allocated.device))
        self.keeper.claimed(allocated.device)
        await self._once()
        self.keeper.show(None, {})
        await self._once()
        self.keeper.show(ZoneMemory(8 * GIB, 4 * GIB), {"toolstack": "libxl", "pv": True})
        await self._once()
        self.keeper = self._keeper()
        self.keeper.show(ZoneMemory(8 * GIB, 4 * GIB), {"toolstack": "libxl", "pv": True})
        await self._once()
        return allocated

    def _keeper(self) -> SliceKeeper:
        api = ClusterApi(self.config.kubeconfig)
        return SliceKeeper(self.config, api, HeldHost(self.held, [CARD]), lambda *_: None)

    async def _once(self) -> dict[str, Json]:
        await self.keeper.once()
        there = self.keeper._there
        assert there is not None
        self.slices.append(devices(there))
        return there


def _forwarded(api: Api, method: str, path: str, body: Json) -> tuple[int, Json]:
    request = urllib.request.Request(
        f"https://127.0.0.1:{api.port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, context=ssl._create_unverified_context()) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def _trimmed(answer: Json) -> Json:
    """Without what the driver does not read: managed fields, times, a node's status."""
    answer = dict(answer)
    if answer.get("kind") == "Node":
        answer = {"kind": "Node", "apiVersion": "v1", "metadata": answer["metadata"]}
        answer["metadata"] = {"name": answer["metadata"]["name"], "uid": answer["metadata"]["uid"]}
    elif "metadata" in answer:
        kept = _KEPT | ({"uid"} if answer.get("kind") == "ResourceClaim" else set())
        answer["metadata"] = {key: value for key, value in answer["metadata"].items() if key in kept}
    return answer


async def _record(release: str, flags: tuple[str, ...], to: Path, folder: Path) -> None:
    recording = Recording()
    async with api_server(folder / "cluster", *flags) as serving:
        api = serving.api
        group = await api.get("/apis/resource.k8s.io")
        version = group["versions"][0]["version"]
        await api.post("/api/v1/nodes", {"metadata": {"name": NAME}})
        with served(recording, folder, api) as path:
            story = Story(DraConfig(node=NAME, kubeconfig=path, dom0_memory=DOM0_MEMORY))
            device = await story.first()
            uid = await _allocate(api, version, device)
            await story.second(uid)
    content = {"release": release, "claim": uid, "exchanges": recording.exchanges}
    (to / f"apiserver-{release}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


async def _allocate(api: Api, version: str, device: str) -> str:
    """Make a claim and allocate the claim, as user and scheduler do: the uid."""
    claims = f"/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims"
    exactly = {"deviceClassName": "zone-memory", "capacity": {"requests": {"memory": "512Mi"}}}
    request = {"name": "zone", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    parameters = {"apiVersion": "xenpod.dev/v1alpha1", "kind": "ZoneResources", "memory": "512Mi"}
    opaque = {"driver": "zones.xenpod.dev", "parameters": parameters}
    spec = {"devices": {"requests": [request], "config": [{"opaque": opaque}]}}
    made = await api.post(claims, {"metadata": {"name": "zone"}, "spec": spec})
    result = {"request": "zone", "driver": "zones.xenpod.dev", "pool": NAME, "device": device}
    if version == "v1":
        share = "6e2a8c1e-3f0c-4b7e-9a5f-3c5d1b2a4f60"
        result |= {"shareID": share, "consumedCapacity": {"memory": "512Mi"}}  # type: ignore[dict-item]
    allocated = {"devices": {"results": [result], "config": [{"source": "FromClaim", "opaque": opaque}]}}
    made["status"] = {
        "allocation": allocated,
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "uid-of-web"}],
    }
    await api.call("PUT", f"{claims}/zone/status", made)
    return str(made["metadata"]["uid"])


async def main(to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    said = subprocess.run(
        [program("kube-apiserver"), "--version"], check=True, capture_output=True, text=True
    )
    release = ".".join(said.stdout.split()[-1].removeprefix("v").split(".")[:2])  # "Kubernetes v1.36.0"
    with tempfile.TemporaryDirectory() as folder:
        await _record(release, SERVERS[release], to, Path(folder))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
