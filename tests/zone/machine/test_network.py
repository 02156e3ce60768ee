"""ConfigureNetwork with a real veth pair moved into the zone."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

MAC = bytes.fromhex("02005e000102")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def veth(zone: Zone) -> Iterator[tuple[str, str]]:
    """Names of the host's end and of the future eth0."""
    tag = uuid.uuid4().hex[:8]
    host, guest = f"xt{tag}h", f"xt{tag}g"
    ip("link", "add", host, "type", "veth", "peer", "name", guest)
    ip("link", "set", host, "up")
    yield host, guest
    subprocess.run(["ip", "link", "del", host], capture_output=True)


def request(**changes: object) -> pb.ConfigureNetwork:
    fields: dict[str, object] = {
        "index": 0,
        "name": "eth0",
        "mac": MAC,
        "mtu": 1400,
        "addresses": ["192.0.2.5/24", "fd00:77::5/64"],
        "routes": [
            pb.Route(destination="0.0.0.0/0", gateway="192.0.2.1"),
            pb.Route(destination="198.51.100.0/24"),
            pb.Route(destination="::/0", gateway="fd00:77::1"),
        ],
    }
    return pb.ConfigureNetwork(**(fields | changes))  # type: ignore[arg-type]


def seen(client: Client, *command: str) -> str:
    name = f"look-{uuid.uuid4().hex[:8]}"
    created = client.call(create_container=creation(name, *command)).created
    client.call(start_container=pb.StartContainer(id=name))
    return client.output(created.stdout_stream).decode()


def test_a_late_interface_is_awaited(zone: Zone, client: Client, veth: tuple[str, str]) -> None:
    call = client.begin(configure_network=request())
    client.call(get_facts=pb.GetFacts())
    assert call not in client.replies
    ip("link", "set", veth[1], "netns", str(zone.pid), "name", "eth0")
    client.finish(call)
    # Twice is as good as once.
    client.call(configure_network=request())
    addresses = seen(client, "ip", "addr", "show", "eth0")
    assert "mtu 1400" in addresses and "02:00:5e:00:01:02" in addresses
    assert "inet 192.0.2.5/24" in addresses and "inet6 fd00:77::5/64" in addresses
    assert "tentative" not in addresses.split("fd00:77::5/64")[1].splitlines()[0]
    routes = seen(client, "ip", "route")
    assert "default via 192.0.2.1 dev eth0" in routes and "198.51.100.0/24 dev eth0 scope link" in routes
    assert "default via fd00:77::1 dev eth0" in seen(client, "ip", "-6", "route")
    assert "state UP" in addresses or "LOWER_UP" in addresses
    (interface,) = client.call(get_stats=pb.GetStats()).stats.zone.interfaces
    assert interface.name == "eth0"


def test_waiting_calls_are_bounded(zone: Zone, client: Client, veth: tuple[str, str]) -> None:
    """Calls of an earlier connection count until their end."""
    for _ in range(63):
        client.begin(configure_network=request())
    client.call(get_facts=pb.GetFacts())
    client.close()
    client = zone.connect()
    call = client.begin(configure_network=request())
    with pytest.raises(Failed) as failed:
        client.call(configure_network=request())
    assert failed.value.code == 8
    ip("link", "set", veth[1], "netns", str(zone.pid), "name", "eth0")
    client.finish(call)
    later = client.begin(configure_network=request(index=7, name="eth7"))
    client.call(get_facts=pb.GetFacts())
    assert later not in client.replies
    client.close()


def test_the_loopback_is_up(client: Client) -> None:
    assert "127.0.0.1/8" in seen(client, "ip", "addr", "show", "lo")


@pytest.mark.parametrize(
    "changes",
    [
        {"index": 64},
        {"name": "a/b"},
        {"name": "x" * 16},
        {"mac": b"12345"},
        {"mtu": 67},
        {"mtu": 65536},
        {"addresses": ["192.0.2.5"]},
        {"addresses": ["192.0.2.5/33"]},
        {"addresses": ["192.0.2.5/24/1"]},
        {"addresses": ["x" * 500]},
        {"addresses": ["192.0.2.5/24"] * 33},
        {"routes": [pb.Route(destination="default")]},
        {"routes": [pb.Route(destination="0.0.0.0/0", gateway="fd00::1")]},
        {"routes": [pb.Route(destination="0.0.0.0/0")] * 65},
    ],
)
def test_invalid_networks_are_refused(client: Client, changes: dict[str, object]) -> None:
    with pytest.raises(Failed) as failed:
        client.call(configure_network=request(**changes))
    assert failed.value.code == 3


def test_a_route_refused_by_the_kernel_is_an_error(zone: Zone, client: Client, veth: tuple[str, str]) -> None:
    ip("link", "set", veth[1], "netns", str(zone.pid), "name", "eth0")
    with pytest.raises(Failed, match="add route: 0.0.0.0/0"):
        client.call(
            configure_network=request(routes=[pb.Route(destination="0.0.0.0/0", gateway="203.0.113.1")])
        )


@pytest.mark.slow
def test_a_missing_interface_times_out(client: Client) -> None:
    with pytest.raises(Failed, match="eth0: it did not appear") as failed:
        client.call(configure_network=request())
    assert failed.value.code == 4
