"""Permitted targets of a registry's redirects."""

from __future__ import annotations

import http.client
import io
import socket
import subprocess
import sys
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from daemonkit.faults import Denied
from images.registry.conversation.connections import MAX_INTERIM, BoundedResponse, pools
from images.registry.conversation.targets import Reach, Targets, parsed, reach_of
from images.registry.conversation.transport import HostSession
from images.registry.hosts import RegistryHost

HOST = RegistryHost("https", "registry.example")


def _allows(met: Sequence[str], target: str, *allowed: str) -> bool:
    targets = Targets(HOST, allowed)
    for address in met:
        targets.met(address)
    try:
        targets.check("auth.example", target)
    except Denied:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("8.8.8.8", Reach.PUBLIC),
        ("2606:4700::1", Reach.PUBLIC),
        ("10.1.2.3", Reach.PRIVATE),
        ("172.31.0.1", Reach.PRIVATE),
        ("192.168.1.1", Reach.PRIVATE),
        ("fd12::1", Reach.PRIVATE),
        ("100.64.0.1", Reach.SHARED),
        ("127.9.9.9", Reach.LOOPBACK),
        ("::1", Reach.LOOPBACK),
        ("169.254.169.254", Reach.LINK_LOCAL),
        ("fe80::1%eth0", Reach.LINK_LOCAL),
        ("::ffff:169.254.169.254", Reach.LINK_LOCAL),
        ("::127.0.0.1", Reach.LOOPBACK),
        ("64:ff9b::10.0.0.1", Reach.PRIVATE),
        ("2002:0a00:0001::", Reach.PRIVATE),
        ("0.0.0.0", Reach.OTHER),  # noqa: S104 - no address that is listened to
        ("::", Reach.OTHER),
        ("224.0.0.1", Reach.OTHER),
        ("ff02::1", Reach.OTHER),
        ("255.255.255.255", Reach.OTHER),
        ("240.0.0.1", Reach.OTHER),
        ("192.0.2.1", Reach.OTHER),
        ("198.18.0.1", Reach.OTHER),
    ],
)
def test_addresses_have_their_reach_by_iana(address: str, reach: Reach) -> None:
    assert reach_of(parsed(address)) is reach


@pytest.mark.parametrize(
    ("met", "target", "allowed"),
    [
        (["8.8.8.8"], "9.9.9.9", True),
        ([], "9.9.9.9", True),
        (["8.8.8.8"], "10.0.0.1", False),
        ([], "10.0.0.1", False),
        (["10.0.0.1"], "192.168.0.1", True),
        (["10.0.0.1"], "fd00::1", True),
        (["10.0.0.1"], "100.64.0.1", False),
        (["10.0.0.1"], "127.0.0.1", False),
        (["10.0.0.1"], "169.254.169.254", False),
        (["100.64.0.1"], "100.64.0.2", True),
        (["127.0.0.1"], "127.0.0.1", True),
        (["127.0.0.1"], "127.0.0.2", False),
        (["169.254.1.1"], "169.254.169.254", False),
        (["169.254.1.1"], "169.254.1.1", True),
        # A name server that gives the registry a private address once, and the real address the next time.
        (["10.0.0.1", "8.8.8.8"], "10.0.0.1", False),
        (["127.0.0.1", "8.8.8.8"], "127.0.0.1", False),
    ],
)
def test_registries_name_addresses_of_their_own_network_alone(
    met: list[str], target: str, allowed: bool
) -> None:
    assert _allows(met, target) is allowed


def test_the_operator_allows_networks_and_hosts() -> None:
    assert _allows(["8.8.8.8"], "10.1.2.3", "10.1.0.0/16")
    assert not _allows(["8.8.8.8"], "10.2.2.3", "10.1.0.0/16")
    assert _allows(["8.8.8.8"], "10.2.2.3", "Auth.example")
    assert not _allows(["8.8.8.8"], "10.2.2.3", "other.example", "fd00::/8")


def test_an_address_in_a_url_is_checked_for_a_proxy() -> None:
    targets = Targets(HOST, ())
    targets.check_literal("https://registry.example/v2/")
    targets.check_literal("https://name.of.something/v2/")
    for url in ("http://169.254.169.254/", "http://[::1]:80/", "http://localhost/", "http://10.0.0.1:5000/"):
        with pytest.raises(Denied):
            targets.check_literal(url)


def test_the_connection_goes_to_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once: a second answer of the name server counts for nothing."""
    answers = iter(["127.0.0.1"])

    def look_up(name: str, port: int, *more: object, **rest: object) -> list[object]:
        address = next(answers) if name == "rebinding.example" else name
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        targets = Targets(HOST, ["127.0.0.0/8"])
        connection = pools(targets)["http"].ConnectionCls("rebinding.example", port)
        connection.connect()
        assert connection.host == "rebinding.example"
        connection.close()
        refused = pools(Targets(HOST, ()))["http"].ConnectionCls("127.0.0.1", port)
        listener.settimeout(0.1)
        listener.accept()[0].close()
        with pytest.raises(Denied):
            refused.connect()
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    "location", ["http://registry.example/x", "http://other/", "ftp://other/", "file:///x"]
)
def test_a_redirect_from_https_to_less_is_refused(location: str) -> None:
    session = HostSession(HOST, Mock(), (1.0, 1.0), 1, Targets(HOST, ()))
    answer = Mock(url="https://registry.example/v2/", is_redirect=True, headers={"location": location})
    with pytest.raises(Denied, match="without encryption"):
        session.get_redirect_target(answer)


def test_interim_responses_have_a_bound() -> None:
    def answered(count: int) -> BoundedResponse:
        text = b"HTTP/1.1 100 Continue\r\n\r\n" * count + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        response = BoundedResponse(Mock(makefile=lambda _: io.BytesIO(text)))
        response.begin()
        return response

    assert answered(MAX_INTERIM).status == 200
    with pytest.raises(http.client.HTTPException, match="interim"):
        answered(MAX_INTERIM + 1)


def test_the_daemon_imports_no_client_of_registries() -> None:
    names = ("requests", "urllib3", "oras", "images.registry.conversation.serve")
    code = f"import sys, cri.daemon; print([one for one in {names} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
