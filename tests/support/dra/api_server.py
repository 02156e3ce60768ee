"""A model of the API server: one node, with slices and claims, in the configured versions.

Like the real server it refuses writes of stale objects (409), and drops fields of missing features.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.images.http_server import HttpServer
from tests.support.labels.api_server import NAME, TOKEN

NODE_UID = "uid-of-node-1"
_GROUP = "/apis/resource.k8s.io"
Json = dict[str, Any]


@dataclass
class Cluster:
    """``versions``: of resource.k8s.io; none for a cluster without it. ``writes``: the received slices.

    ``written``: claims as bytes, preferred to ``claims``. ``refusal``: the status and message of every
    answer, if any.
    """

    versions: tuple[str, ...] = ("v1", "v1beta2", "v1beta1")
    consumable: bool = True
    mapped: bool = False
    taints: bool = True
    slices: dict[str, Json] = field(default_factory=dict)
    claims: dict[str, Json] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)
    writes: list[tuple[str, Json]] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    _changes: int = 0

    @property
    def slice(self) -> Json:
        """The only node."""
        (found,) = self.slices.values()
        return found

    def stamped(self, body: Json) -> Json:
        self._changes += 1
        body["metadata"] |= {"resourceVersion": str(self._changes)}
        return body


@contextlib.contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """Run the server while the block runs: the URL."""

    class Handler(_Handler):
        model = cluster

    with HttpServer(Handler) as server:
        yield f"http://{server.netloc}"


class _Handler(BaseHTTPRequestHandler):
    model: Cluster

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        self._answer(None)

    def do_DELETE(self) -> None:  # noqa: N802
        self._answer(None)

    def do_POST(self) -> None:  # noqa: N802
        self._answer(self._body())

    def do_PUT(self) -> None:  # noqa: N802
        self._answer(self._body())

    def _body(self) -> Json:
        body: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _answer(self, body: Json | None) -> None:
        status, answer = self._outcome(body)
        if status >= 400:
            answer = {"kind": "Status", "message": answer, "code": status}
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _outcome(self, body: Json | None) -> tuple[int, Any]:
        url = urlsplit(self.path)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, "Unauthorized"
        if self.model.refusal:
            return self.model.refusal
        if url.path == f"/api/v1/nodes/{NAME}":
            return 200, {"kind": "Node", "metadata": {"name": NAME, "uid": NODE_UID}}
        if url.path in (_GROUP, f"{_GROUP}/") and self.model.versions:
            return 200, self._group()
        if url.path == "/apis/events.k8s.io/v1/namespaces/default/events" and body is not None:
            self.model.events.append(body)
            return 201, body
        parts = url.path.removeprefix(f"{_GROUP}/").split("/")
        if not url.path.startswith(_GROUP) or parts[0] not in self.model.versions:
            return 404, "the server could not find the requested resource"
        match parts[1:]:
            case ["resourceslices", *name]:
                return self._slice(parts[0], "".join(name), body, "dryRun" in parse_qs(url.query))
            case ["namespaces", namespace, "resourceclaims", name]:
                key = f"{namespace}/{name}"
                found = self.model.written.get(key) or self.model.claims.get(key)
                return (200, found) if found else (404, f'resourceclaims "{name}" not found')
        return 404, "no such path"

    def _group(self) -> Json:
        versions = [{"groupVersion": f"resource.k8s.io/{one}", "version": one} for one in self.model.versions]
        return {"kind": "APIGroup", "name": "resource.k8s.io", "versions": versions}

    def _slice(self, version: str, name: str, body: Json | None, trial: bool) -> tuple[int, Any]:
        model = self.model
        if body is None:
            if name not in model.slices:
                return 404, f'resourceslices "{name}" not found'
            return 200, model.slices.pop(name) if self.command == "DELETE" else model.slices[name]
        name = body["metadata"]["name"]
        assert body["apiVersion"] == f"resource.k8s.io/{version}"
        there = model.slices.get(name)
        if self.command == "POST" and there is not None:
            return 409, f'resourceslices "{name}" already exists'
        if self.command == "PUT":
            if there is None:
                return 404, f'resourceslices "{name}" not found'
            if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
                return 409, "the object has been modified"
        kept = self._dropped(body)
        if not trial:
            model.slices[name] = model.stamped(kept)
            model.writes.append((version, copy.deepcopy(kept)))
        return (201 if self.command == "POST" else 200), kept

    def _dropped(self, body: Json) -> Json:
        kept = copy.deepcopy(body)
        for device in kept["spec"]["devices"]:
            fields = device.get("basic", device)
            if not self.model.taints:
                fields.pop("taints", None)
            if not self.model.mapped:
                fields.pop("nodeAllocatableResourceMappings", None)
            if not self.model.consumable:
                fields.pop("allowMultipleAllocations", None)
                fields.get("capacity", {}).get("memory", {}).pop("requestPolicy", None)
        return kept
