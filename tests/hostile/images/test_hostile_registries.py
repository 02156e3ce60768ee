"""A hostile registry fails its own pull, and all other callers are served.

In each attack a tenant names an image of the tenant's own registry.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage, StageSettings, staged
from tests.support.images.images import Blob, Layer, build, digest
from tests.support.images.registry import Answer, LyingRegistry, content, status
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]
MIB = 1 << 20
SECONDS = 120.0
CALLS = 50
IMAGE = build([Layer().file("f", b"x" * 1000).tar()])
HONEST = build([Layer().file("honest", b"y" * 100_000).tar()])
# Its digest is wrong: the blob is never whole.
LARGE = build([Blob(os.urandom(16 * MIB), digest(b""), "application/vnd.oci.image.layer.v1.tar")])
MANIFEST = "/v2/app/manifests/1"
DENIED, REFUSED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION


async def _pull(stage: Stage, name: str) -> None:
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name))
    await stage.client.image.PullImage(request, timeout=SECONDS)


async def _failure(stage: Stage, name: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _pull(stage, name)
    return raised.value.code(), str(raised.value.details())


async def _served(stage: Stage) -> None:
    """Other callers get their answers: small answers, and a pull of an honest image."""
    for _ in range(CALLS):
        await stage.client.runtime.Version(cri.VersionRequest(), timeout=SECONDS)
    with LyingRegistry("honest", "1", HONEST) as registry:
        await _pull(stage, name := f"{registry.netloc}/honest:1")
        await stage.client.remove_image(name)


def _daemon(stage: Stage) -> int:
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(stage.node.daemon.config).encode() in _read(path)
    ]
    return pid


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in _read(task / "children").split()]
    return found


def _ticks(pid: int) -> int:
    """CPU time of a process."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def _most_memory(pid: int) -> int:
    """Peak memory of a process, in bytes."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) << 10


async def test_challenge_of_a_long_word_delays_no_other_caller(stage: Stage) -> None:
    def challenge(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(401)
        for _ in range(3):
            handler.send_header("WWW-Authenticate", "Bearer " + "a" * 65_000)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = challenge
        pull = asyncio.create_task(_failure(stage, f"{registry.netloc}/app:1"))
        await _served(stage)
        assert (await pull)[0] is DENIED


async def test_endless_interim_responses_end_the_pull(stage: Stage) -> None:
    broken_off = threading.Event()

    def interim(handler: BaseHTTPRequestHandler) -> None:
        try:
            while True:
                handler.wfile.write(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 1000)
        except OSError:
            broken_off.set()
        handler.close_connection = True

    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = interim
        pull = asyncio.create_task(_failure(stage, f"{registry.netloc}/app:1"))
        await _served(stage)
        assert (await pull)[0] is grpc.StatusCode.UNAVAILABLE
        assert broken_off.is_set()


NESTED = {
    "flat": b'{"a":[' + b"[]," * ((4 * MIB - 20) // 3) + b"1]}",
    "deep": b'{"a":' * (2 * MIB // 5) + b"1" + b"}" * (2 * MIB // 5),
}


@pytest.mark.parametrize("shape", list(NESTED))
async def test_a_manifest_of_4_mib_of_nested_json_takes_no_memory_of_the_daemon(
    stage: Stage, shape: str
) -> None:
    daemon = _daemon(stage)
    Path(f"/proc/{daemon}/clear_refs").write_text("5")  # the peak of earlier tests
    before = _most_memory(daemon)
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = content(NESTED[shape])
        pulls = [asyncio.create_task(_failure(stage, f"{registry.netloc}/app:1")) for _ in range(4)]
        await _served(stage)
        for pull in pulls:
            assert (await pull)[0] in (grpc.StatusCode.INVALID_ARGUMENT, REFUSED)
    # Parsed, the flat document takes 80 MiB.
    assert _most_memory(daemon) - before < 40 * MIB


async def test_layer_in_single_bytes_takes_the_time_of_its_worker(stage: Stage) -> None:
    """During the pull others are served, and the daemon works less than the pull's own process."""
    begun = threading.Event()

    def bytewise(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        begun.set()
        try:
            while True:
                handler.wfile.write(b"1\r\nx\r\n" * 10_000)
        except OSError:
            handler.close_connection = True

    with LyingRegistry("app", "1", LARGE) as registry:
        registry.answers[f"/v2/app/blobs/{digest(LARGE.layers[0].data)}"] = bytewise
        pull = asyncio.create_task(_pull(stage, f"{registry.netloc}/app:1"))
        await asyncio.to_thread(begun.wait, SECONDS)
        daemon = _daemon(stage)
        parents = [one for one in _children(daemon) if b"images.worker" in _cmdline(one)]
        workers = {one: _ticks(one) for parent in parents for one in _children(parent)}
        before = _ticks(daemon)
        await until(lambda: max(_ticks(one) - at for one, at in workers.items()) > 100, SECONDS)
        assert _ticks(daemon) - before < max(_ticks(one) - at for one, at in workers.items())
        await _served(stage)
        assert not pull.done()
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull


def _cmdline(pid: int) -> bytes:
    return _read(Path(f"/proc/{pid}/cmdline"))


class _Metadata:
    """A service on another address of loopback; it answers every connection with a token."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.netloc = "{}:{}".format(*listener.getsockname())
        self.connections = 0

    def serve(self) -> None:
        body = b'{"token": "SECRET-OF-THE-INSTANCE"}'
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            self.connections += 1
            with link:
                link.recv(1 << 16)
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@contextmanager
def _metadata() -> Iterator[_Metadata]:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        service = _Metadata(listener)
        thread = threading.Thread(target=service.serve)
        thread.start()
        try:
            yield service
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _realm(netloc: str) -> Answer:
    return status(401, WWW_Authenticate=f'Bearer realm="http://{netloc}/computeMetadata/token"')


def _redirect(netloc: str) -> Answer:
    return status(307, Location=f"http://{netloc}/latest/meta-data/")


@pytest.mark.parametrize("how", [_realm, _redirect], ids=["realm", "redirect"])
async def test_a_private_address_is_not_asked_on_a_registrys_word(
    stage: Stage, how: Callable[[str], Answer]
) -> None:
    with _metadata() as service, LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = how(service.netloc)
        code, said = await _failure(stage, f"{registry.netloc}/app:1")
        assert code is DENIED
        assert "127.0.0.2" in said and "images.private_targets" in said
        assert service.connections == 0
        assert all("SECRET" not in str(headers) for _, _, headers in registry.requests)


@pytest.mark.parametrize("how", [_realm, _redirect], ids=["realm", "redirect"])
@pytest.mark.parametrize(
    "netloc",
    ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "10.0.0.1", "100.64.0.1", "0.0.0.0"],
)
async def test_metadata_and_private_networks_are_not_asked_on_a_registrys_word(
    stage: Stage, netloc: str, how: Callable[[str], Answer]
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[MANIFEST] = how(netloc)
        code, said = await _failure(stage, f"{registry.netloc}/app:1")
        assert code is DENIED and "images.private_targets" in said


async def test_address_allowed_by_the_operator_is_asked(tmp_path: Path) -> None:
    certs = tmp_path / "certs.d"
    settings = StageSettings({"images": {"certs_dir": str(certs), "private_targets": ["127.0.0.2/32"]}})
    async with staged(tmp_path, settings) as stage:
        with _metadata() as service, LyingRegistry("app", "1", IMAGE) as registry:
            registry.answers[MANIFEST] = _realm(service.netloc)
            assert (await _failure(stage, f"{registry.netloc}/app:1"))[0] is DENIED
            assert service.connections == 1
            assert registry.requests[-1][2]["Authorization"] == "Bearer SECRET-OF-THE-INSTANCE"
