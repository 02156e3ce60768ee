"""Registries for tests: Debian's docker-registry on a free loopback port, and a lying registry."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.support.images.http_server import HttpServer
from tests.support.images.images import BuiltImage, digest, index_of

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def free_port() -> int:
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Registry:
    """A running docker-registry; netloc: "127.0.0.1:port"."""

    netloc: str
    root: Path
    process: subprocess.Popen[bytes]

    def push(self, repository: str, tag: str, image: BuiltImage, index: bool = False) -> str:
        """Puts an image under a tag (index: behind an index); gives the digest of what is tagged."""
        base = f"http://{self.netloc}/v2/{repository}"
        for name, data in image.blobs.items():
            self._push_blob(base, name, data)
        if not index:
            return self.put_manifest(repository, tag, image.manifest, MANIFEST)
        self.put_manifest(repository, digest(image.manifest), image.manifest, MANIFEST)
        return self.put_manifest(repository, tag, index_of([image.descriptor]), INDEX)

    def put_manifest(self, repository: str, tag: str, data: bytes, media_type: str) -> str:
        """Puts a manifest or index unchanged."""
        url = f"http://{self.netloc}/v2/{repository}/manifests/{tag}"
        answer = requests.put(url, data=data, headers={"Content-Type": media_type}, timeout=30)
        assert answer.status_code == 201, answer.text
        return digest(data)

    @staticmethod
    def _push_blob(base: str, name: str, data: bytes) -> None:
        if requests.head(f"{base}/blobs/{name}", timeout=30).status_code == 200:
            return
        where = requests.post(f"{base}/blobs/uploads/", timeout=30).headers["Location"]
        where += ("&" if urlsplit(where).query else "?") + f"digest={name}"
        answer = requests.put(where, data=data, timeout=60)
        assert answer.status_code == 201, answer.text

    def blob_file(self, name: str) -> Path:
        """Where the registry keeps a blob."""
        value = name.partition(":")[2]
        return self.root / "docker/registry/v2/blobs/sha256" / value[:2] / value / "data"


@contextmanager
def running(directory: Path, **more: Any) -> Iterator[Registry]:
    """A docker-registry with its data in the directory; more: further members of the configuration."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    netloc = f"127.0.0.1:{free_port()}"
    root = directory / "registry"
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(root)}},
        **more,
        "http": {"addr": netloc, **more.get("http", {})},
    }
    file = directory / "registry.json"
    file.write_text(json.dumps(config))
    with (directory / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log)
    try:
        _wait(process, netloc, directory / "registry.log")
        yield Registry(netloc, root, process)
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], netloc: str, log: Path) -> None:
    host, _, port = netloc.partition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        # The registry has no way to announce that it listens.
        time.sleep(0.05)
    raise AssertionError(f"docker-registry does not listen: {log.read_text()}")


Answer = Callable[[BaseHTTPRequestHandler], None]


class LyingRegistry:
    """A tiny server of an image, or several, whose answers a test may replace.

    requests: (method, path, headers) until now.
    """

    def __init__(self, repository: str, tag: str, image: BuiltImage) -> None:
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.answers: dict[str, Answer] = {}
        self.add(repository, tag, image)
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.requests.append((self.command, self.path, dict(self.headers)))
                length = int(self.headers.get("Content-Length") or 0)
                self.body = self.rfile.read(length)
                registry.answers.get(urlsplit(self.path).path, status(404))(self)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self._server = HttpServer(Handler)
        self.netloc = self._server.netloc

    def __enter__(self) -> LyingRegistry:
        self._server.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.__exit__(*exc)

    def add(self, repository: str, tag: str, image: BuiltImage) -> None:
        """Serve another image."""
        base = f"/v2/{repository}"
        for name in (tag, digest(image.manifest)):
            self.answers[f"{base}/manifests/{name}"] = content(image.manifest, MANIFEST)
        for name, data in image.blobs.items():
            self.answers[f"{base}/blobs/{name}"] = content(data)

    def paths(self) -> list[str]:
        """Requested paths, without queries."""
        return [urlsplit(path).path for _, path, _ in self.requests]


def content(data: bytes, media_type: str = "application/octet-stream", length: int | None = None) -> Answer:
    """An answer with these bytes; length: a wrong Content-Length."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", media_type)
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = length is not None

    return answer


def status(code: int, **headers: str) -> Answer:
    """An empty answer; underscores in header names are dashes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def stalling(data: bytes, size: int, release: threading.Event) -> Answer:
    """Begins an answer of size bytes, then pauses until the release."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        handler.wfile.write(data)
        handler.wfile.flush()
        release.wait(300)
        handler.close_connection = True

    return answer
