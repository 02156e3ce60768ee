"""Statistics of containers and of the zone, and updates of limits."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

MIB = 1 << 20


def stats(client: Client, *ids: str, details: bool = False) -> pb.Stats:
    return client.call(get_stats=pb.GetStats(container_ids=ids, details=details)).stats


def one(client: Client, name: str = "c1", details: bool = False) -> pb.ContainerStats:
    (found,) = stats(client, name, details=details).containers
    return found


def update(client: Client, resources: dict[str, Any], name: str = "c1") -> None:
    data = json.dumps(resources).encode()
    client.call(update_container=pb.UpdateContainer(id=name, resources_json=data))


def busy(client: Client, name: str = "c1") -> None:
    """A container that has burnt some CPU and holds 8 MiB of memory in a file, by its own output."""
    work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; head -c 8388608 /dev/zero >/held"
    script = f"{work}; sleep 600 & echo ready; wait"
    created = client.start(name, "sh", "-c", script, memory=64 * MIB)
    client.until(
        lambda: created.stdout_stream in client.streams and bool(client.streams[created.stdout_stream].data)
    )


def test_statistics_show_the_usage_of_a_container(client: Client) -> None:
    busy(client)
    found = one(client)
    assert found.cpu_usage_ns > 10**6 and found.cpu_user_ns + found.cpu_system_ns > 0
    assert found.memory_limit_bytes == 64 * MIB
    assert 8 * MIB < found.memory_usage_bytes < 64 * MIB
    assert 0 < found.memory_working_set_bytes <= found.memory_usage_bytes
    assert 0 < found.memory_rss_bytes < 8 * MIB <= found.memory_cache_bytes
    assert found.page_faults > 0 and found.pids_current == 2
    assert found.writable_layer_bytes >= 8 * MIB < found.writable_layer_limit_bytes
    assert found.writable_layer_inodes < found.writable_layer_inodes_limit
    assert found.processes == found.file_descriptors == 0  # asked for without details


def test_statistics_of_containers_only_omit_the_zone(client: Client) -> None:
    busy(client)
    found = client.call(get_stats=pb.GetStats(containers_only=True)).stats
    assert [row.id for row in found.containers] == ["c1"] and not found.HasField("zone")


def test_details_of_statistics_are_counted(client: Client) -> None:
    busy(client)
    found = one(client, details=True)
    assert found.processes == 2 and found.file_descriptors >= 6 and found.sockets == 0
    assert found.memory_max_usage_bytes >= 8 * MIB


def test_sockets_are_counted(client: Client) -> None:
    client.start("c1", "busybox", "nc", "-l", "-p", "9000")
    deadline = time.monotonic() + DEADLINE
    while not (found := one(client, details=True)).sockets:
        assert time.monotonic() < deadline, "the server opens no socket"
    assert found.sockets == 1 < found.file_descriptors


def test_statistics_show_the_usage_of_the_zone(client: Client) -> None:
    before = stats(client).zone
    busy(client)
    zone = stats(client).zone
    assert zone.cpu_usage_ns > before.cpu_usage_ns and zone.timestamp_ns > before.timestamp_ns
    assert zone.memory_usage_bytes - before.memory_usage_bytes > 4 * MIB
    assert zone.memory_usage_bytes >= one(client).memory_usage_bytes
    assert 0 < zone.memory_working_set_bytes <= zone.memory_usage_bytes <= zone.memory_total_bytes
    assert 0 < zone.memory_available_bytes <= zone.memory_total_bytes
    assert zone.page_faults > before.page_faults and zone.memory_rss_bytes > 0 < zone.agent_rss_bytes
    assert zone.swap_usage_bytes <= max(zone.swap_total_bytes, 0) or zone.swap_usage_bytes == 0


def test_files_of_a_containers_group_stay_open(zone: Zone, client: Client) -> None:
    """Opening the files would take too long; another container with the same name has other files."""

    def opened() -> dict[str, str]:
        links = Path(f"/proc/{zone.pid}/fd")
        return {one.name: os.readlink(one) for one in links.iterdir() if "/workloads/" in os.readlink(one)}

    for _ in range(2):
        busy(client)
        assert 8 * MIB < one(client).memory_usage_bytes
        before = opened()
        found = stats(client).containers[0]
        assert opened() == before and len(before) >= 7
        update(client, {"memory": {"limit": 128 * MIB}})
        after = one(client)
        assert (found.memory_limit_bytes, after.memory_limit_bytes) == (64 * MIB, 128 * MIB)
        client.delete("c1")
        assert not opened()
        assert not stats(client).containers


def test_more_containers_than_files_stay_open(zone: Zone, client: Client) -> None:
    names = [f"c{number}" for number in range(12)]
    for number, name in enumerate(names):
        client.start(name, "sleep", "600", memory=(32 + number) * MIB)
    for _ in range(2):
        found = {row.id: row.memory_limit_bytes for row in stats(client).containers}
        assert found == {name: (32 + number) * MIB for number, name in enumerate(names)}
    assert len(list(Path(f"/proc/{zone.pid}/fd").iterdir())) < 72 + 8 + 4 * len(names)


def test_the_zone_s_memory_is_the_limit_of_its_group(client: Client, cgroups: list[Path]) -> None:
    limits = [group / name for group in cgroups for name in ("memory.max", "memory.limit_in_bytes")]
    [limit] = [path for path in limits if path.exists()]
    limit.write_text(str(256 << 20))
    zone = stats(client).zone
    assert zone.memory_total_bytes == 256 << 20
    assert 0 < zone.memory_available_bytes <= 256 << 20


def test_pressure_is_reported_if_the_kernel_has_pressure(client: Client) -> None:
    try:
        with open("/proc/pressure/cpu") as file:
            file.read()
    except OSError:
        pytest.skip("this kernel measures no pressure")
    zone = stats(client).zone
    for pressure in (zone.cpu_pressure, zone.memory_pressure, zone.io_pressure):
        assert 0 <= pressure.some_avg10 <= 100 and pressure.full_total_us <= pressure.some_total_us
    assert zone.cpu_pressure.some_total_us > 0


def test_an_update_changes_the_limits(client: Client) -> None:
    busy(client)
    update(client, {"memory": {"limit": 128 * MIB}, "cpu": {"quota": 50_000, "period": 100_000}})
    assert one(client).memory_limit_bytes == 128 * MIB
    update(client, {"cpu": {"shares": 512}})
    assert one(client).memory_limit_bytes == 128 * MIB


def test_memory_and_swap_go_up_and_down_together(client: Client) -> None:
    busy(client)
    update(client, {"memory": {"limit": 64 * MIB, "swap": 64 * MIB}})
    for limit in (128 * MIB, 32 * MIB):
        update(client, {"memory": {"limit": limit, "swap": limit}})
        found = one(client)
        assert (found.memory_limit_bytes, found.memory_swap_limit_bytes) == (limit, limit)


def test_a_created_container_is_updated_too(client: Client) -> None:
    client.call(create_container=creation("c1", "sleep", "600", memory=64 * MIB))
    update(client, {"memory": {"limit": 32 * MIB}})
    assert one(client).memory_limit_bytes == 32 * MIB
    client.call(start_container=pb.StartContainer(id="c1"))
    assert one(client).memory_limit_bytes == 32 * MIB


@pytest.mark.parametrize(
    ("name", "resources", "code"),
    [
        ("c1", b"{", 9),
        ("c1", b"", 3),
        ("other", b"{}", 5),
        ("../c1", b"{}", 5),
        ("c1", b'{"cpu": {"cpus": "900-901"}}', 9),
    ],
)
def test_a_failed_update_is_reported(client: Client, name: str, resources: bytes, code: int) -> None:
    busy(client)
    with pytest.raises(Failed) as raised:
        client.call(update_container=pb.UpdateContainer(id=name, resources_json=resources))
    assert raised.value.code == code, raised.value.message
    assert one(client).memory_limit_bytes == 64 * MIB


def test_a_limit_below_the_used_memory_is_refused(client: Client) -> None:
    script = "head -c 8388608 /dev/zero >/held; echo ready; sleep 600"
    created = client.start("c1", "sh", "-c", script, memory=64 * MIB)
    client.until(
        lambda: created.stdout_stream in client.streams and bool(client.streams[created.stdout_stream].data)
    )
    with pytest.raises(Failed) as raised:
        update(client, {"memory": {"limit": MIB}})
    assert raised.value.code == 9, raised.value.message
    assert one(client).memory_limit_bytes == 64 * MIB


def test_an_ended_container_is_not_updated(client: Client) -> None:
    client.start("c1", "true")
    client.exited("c1")
    with pytest.raises(Failed) as raised:
        update(client, {"memory": {"limit": MIB}})
    assert raised.value.code == 9
    client.delete("c1")


def test_a_deletion_waits_for_an_update(zone: Zone, client: Client) -> None:
    busy(client)
    first = client.begin(
        update_container=pb.UpdateContainer(id="c1", resources_json=b'{"cpu": {"shares": 99}}')
    )
    second = client.begin(delete_container=pb.DeleteContainer(id="c1"))
    client.finish(second)
    client.finish(first)
    assert client.listed() == {}
