"""Work of the agent in a copy of itself: no other call waits for the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone, attached
from tests.support.agent.zone_image import busybox_squashfs
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

FILES = 10_000
TRIES = 10


@pytest.fixture(scope="session")
def long_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An image whose change of owners takes a while."""
    base = tmp_path_factory.mktemp("long")
    image = busybox_squashfs(base)
    many = base / "tree/many"
    many.mkdir()
    for number in range(FILES):
        (many / str(number)).touch()
    command = ["mksquashfs", str(base / "tree"), str(image), "-noappend", "-quiet", "-no-progress"]
    subprocess.run(command, check=True)
    with attached(image) as device:
        yield device


@pytest.fixture
def pod(tmp_path: Path, root: Path, cgroups: list[Path], long_disk: Path) -> Iterator[Zone]:
    directory = tmp_path / "pod"
    directory.mkdir()
    zone = Zone(directory, root, cgroups, XENPOD_IDS="change")
    zone.unpause()
    zone.connect().close()
    zone.attach("xvda", long_disk)
    yield zone
    zone.destroy()


def at_work(zone: Zone, deadline: float) -> int:
    """The pid of the copy that changes owners; 0 if not found."""
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{zone.pid}/task/{zone.pid}/children").read_text().split():
            try:
                place = os.readlink(f"/proc/{child}/cwd")
            except (FileNotFoundError, ProcessLookupError):
                continue
            # A starting crun still has the agent's working directory.
            if "/rootfs" in place:
                return int(child)
    return 0


def test_the_end_of_an_input_does_not_wait_for_a_copy_at_work(pod: Zone) -> None:
    with_input = creation("c1", "cat", user_namespace=True, stdin=True)
    client = pod.connect()
    client.call(configure_zone=pb.ConfigureZone(id_mapping=pb.IdMapping(host_id=200_000, length=65_536)))
    created = client.call(create_container=with_input).created
    client.call(start_container=pb.StartContainer(id="c1"))
    for number in range(TRIES):
        call = client.begin(create_container=creation(f"x{number}", "true", user_namespace=True))
        copy = at_work(pod, time.monotonic() + 2.0)
        if copy:
            break
        client.finish(call)
    else:
        pytest.fail(f"no copy was met at work in {TRIES} creates of {FILES} files")
    os.kill(copy, signal.SIGSTOP)
    try:
        client.write(created.stdin_stream, b"", fin=True)
        assert client.exited("c1").exit_code == 0
    finally:
        os.kill(copy, signal.SIGCONT)
    client.finish(call)
    client.close()
