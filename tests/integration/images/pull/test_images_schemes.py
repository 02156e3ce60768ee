"""http to a port of TLS, and https to a port of plain http: each message names the mistake and the remedy."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from daemonkit.faults import Unreachable
from images.image_settings import ImageSettings
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images import registry as registries
from tests.support.images.http_server import HttpServer
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build
from tests.support.images.registry import LyingRegistry, status

IMAGE = build([Layer().file("f", b"x" * 5000).tar()])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run([*make.split(), "-keyout", file, "-out", f"{file}.crt"], check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


async def _failure(folder: Path, netloc: str, scheme: str = "") -> str:
    """Error of a pull from the host; scheme: of hosts.toml."""
    if scheme:
        (folder / "certs.d" / netloc).mkdir(parents=True)
        (folder / "certs.d" / netloc / "hosts.toml").write_text(f'server = "{scheme}://{netloc}"\n')
    settings = ImageSettings(folder / "state", folder / "certs.d", tries_per_host=2, retry_seconds=0.01)
    async with running(settings) as manager:
        with pytest.raises(Unreachable) as caught:
            await manager.pull(names.parse(f"{netloc}/app:1"), ANONYMOUS)
    return str(caught.value)


@contextmanager
def _tls_server(certificate: Path, client_wanted: bool) -> Iterator[str]:
    """A server that answers http with an alert, and goes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED if client_wanted else ssl.CERT_NONE
    with HttpServer(BaseHTTPRequestHandler, context) as server:
        yield server.netloc


@contextmanager
def _raw_server(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    answer(link)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_http_to_a_registry_of_tls(tmp_path: Path, certificate: Path) -> None:
    """A server in Go answers with a 400."""
    tls = {"tls": {"certificate": str(certificate), "key": str(certificate)}}
    with registries.running(tmp_path, http=tls) as registry:
        said = await _failure(tmp_path, registry.netloc)
    assert "http was spoken to a port of TLS" in said
    file = tmp_path / "certs.d" / registry.netloc / "hosts.toml"
    assert f"name https://{registry.netloc} in {file}" in said


@pytest.mark.parametrize("client_wanted", [False, True])
async def test_http_to_a_server_of_tls_names_the_mistake(
    tmp_path: Path, certificate: Path, client_wanted: bool
) -> None:
    with _tls_server(certificate, client_wanted) as netloc:
        assert "http was spoken to a port of TLS" in await _failure(tmp_path, netloc)


async def test_https_to_a_registry_without_tls(tmp_path: Path) -> None:
    with registries.running(tmp_path) as registry:
        said = await _failure(tmp_path, registry.netloc, "https")
    assert "https was spoken to a port that does not speak TLS" in said
    file = tmp_path / "certs.d" / registry.netloc / "hosts.toml"
    assert f"if it has none, name http://{registry.netloc} in {file}" in said


async def test_https_to_something_else(tmp_path: Path) -> None:
    with _raw_server(lambda link: link.sendall(b"SSH-2.0-other\r\n")) as netloc:
        assert "https was spoken to a port that does not" in await _failure(tmp_path, netloc, "https")


async def test_host_hanging_up_is_not_taken_for_tls(tmp_path: Path) -> None:
    with _raw_server(lambda link: link.recv(1000) and None) as netloc:
        for folder, scheme in (("plain", ""), ("secure", "https")):
            said = await _failure(tmp_path / folder, netloc, scheme)
            assert "spoken" not in said and netloc in said


async def test_bad_request_of_a_registry_stays_a_bad_request(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers["/v2/app/manifests/1"] = status(400)
        assert "the registry answers 400" in await _failure(tmp_path, registry.netloc)
