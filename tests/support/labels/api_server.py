"""An API server of one Node object: GET and merge patches, with a bearer token; tests can set failures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.images.http_server import HttpServer

NAME = "node-1"
TOKEN = "token-of-the-test"


@dataclass
class OneNode:
    """``labels`` are the node's; ``refusal``: the status and message of every answer, if any."""

    labels: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    body: bytes | None = None
    """The answer instead of the node."""
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def patched(self) -> list[Any]:
        return [body for method, body in self.requests if method == "PATCH"]


@contextlib.contextmanager
def serving(node: OneNode) -> Iterator[str]:
    """Run the server while the block runs: the URL."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802
            node.requests.append(("GET", None))
            self._answer()

        def do_PATCH(self) -> None:  # noqa: N802
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            node.requests.append(("PATCH", body))
            for key, value in body["metadata"]["labels"].items():
                if value is None:
                    del node.labels[key]
                else:
                    node.labels[key] = value
            self._answer()

        def _answer(self) -> None:
            refusal = node.refusal
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                refusal = (401, "Unauthorized")
            elif self.path != f"/api/v1/nodes/{NAME}":
                refusal = (404, 'nodes "other" not found')
            status, message = refusal or (200, "")
            answer: Any = {"kind": "Node", "metadata": {"name": NAME, "labels": node.labels}}
            if refusal:
                answer = {"kind": "Status", "message": message, "code": status}
            content = json.dumps(answer).encode() if node.body is None else node.body
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with HttpServer(Handler) as server:
        yield f"http://{server.netloc}"


def kubeconfig(path: Path, server: str, token: str = TOKEN) -> Path:
    """Write a kubeconfig for the server: the file's path."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(content))
    return path
