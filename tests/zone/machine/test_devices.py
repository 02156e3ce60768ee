"""FindDevice: the zone's confirmation of a new disk, its properties in the zone, and its removal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protect.host.loops import take_loop
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
_SIZE = 3 << 20


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(_SIZE))
    loop = take_loop(backing, readonly=False)
    try:
        yield loop.path
    finally:
        loop.close()


def test_arrival_and_removal_of_a_device_are_waited_for(zone: Zone, client: Client, device: Path) -> None:
    """Both calls wait, and no other call does."""
    coming = client.begin(find_device=pb.FindDevice(name="xvdd"))
    client.call(get_facts=pb.GetFacts())
    assert coming not in client.replies
    zone.attach("xvdd", device)
    found = client.finish(coming).device
    number = device.stat().st_rdev
    assert (found.major, found.minor) == (os.major(number), os.minor(number))
    assert (found.size_bytes, found.in_use) == (_SIZE, False)
    going = [client.begin(find_device=pb.FindDevice(name="xvdd", gone=True)) for _ in range(2)]
    client.call(get_facts=pb.GetFacts())
    assert not set(going) & client.replies.keys()
    os.unlink(f"/proc/{zone.pid}/root/dev/xvdd")
    assert [client.finish(call).device for call in going] == [pb.DeviceFound()] * 2
    assert client.call(find_device=pb.FindDevice(name="xvdd", gone=True)).device == pb.DeviceFound()


def test_device_opened_exclusively_is_in_use(zone: Zone, client: Client, device: Path) -> None:
    zone.attach("xvdd", device)
    held = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        assert client.call(find_device=pb.FindDevice(name="xvdd")).device.in_use
    finally:
        os.close(held)
    assert not client.call(find_device=pb.FindDevice(name="xvdd")).device.in_use


@pytest.mark.parametrize("name", ["", "../null", "x" * 17, "XVDA"])
def test_invalid_device_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(Failed) as failed:
        client.call(find_device=pb.FindDevice(name=name))
    assert failed.value.code == 3


def test_device_without_a_driver_is_not_gone(zone: Zone, client: Client) -> None:
    """A number without a driver: the wait goes on, or the agent says what the kernel said."""
    os.mknod(f"/proc/{zone.pid}/root/dev/xvdd", 0o060600, os.makedev(254, 1048570))
    gone = client.begin(find_device=pb.FindDevice(name="xvdd", gone=True))
    client.call(get_facts=pb.GetFacts())
    assert gone not in client.replies
    os.unlink(f"/proc/{zone.pid}/root/dev/xvdd")
    client.finish(gone)
