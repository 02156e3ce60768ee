"""A pod's user namespace: owners of files, and the rights of its root."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone, attached, writable_loop
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_listener import listen
from tests.support.agent.zone_specs import creation, stack
from tests.support.images.volume_image import owned_squashfs
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, REFUSED = 3, 9
FIRST, LENGTH = 200_000, 65_536
NETLINK_KOBJECT_UEVENT = 15
MAPPING = pb.IdMapping(host_id=FIRST, length=LENGTH)


@pytest.fixture(scope="session")
def owned_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with attached(owned_squashfs(tmp_path_factory.mktemp("owned"))) as device:
        yield device


@pytest.fixture(params=["mapped", "changed"])
def pod(
    request: pytest.FixtureRequest, tmp_path: Path, root: Path, cgroups: list[Path], owned_disk: Path
) -> Iterator[Zone]:
    """A zone with the image of many owners, whose kernel maps ids, or is said not to."""
    directory = tmp_path / "pod"
    directory.mkdir()
    environment: dict[str, Any] = {"XENPOD_IDS": "change"} if request.param == "changed" else {}
    zone = Zone(directory, root, cgroups, **environment)
    zone.unpause()
    zone.connect().close()
    zone.attach("xvda", owned_disk)
    yield zone
    zone.destroy()
    console = zone.console()
    assert "ERROR: AddressSanitizer" not in console and "runtime error" not in console, console


@pytest.fixture
def outside(pod: Zone) -> Iterator[int]:
    """The initial network namespace of the zone's kernel."""
    descriptor = os.open(f"/proc/{pod.pid}/ns/net", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def in_pod(pod: Zone, outside: int) -> Iterator[Client]:
    connection = pod.connect()
    connection.call(configure_zone=pb.ConfigureZone(id_mapping=MAPPING))
    yield connection
    connection.close()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def said(client: Client, request: pb.CreateContainer) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    return (client.output(created.stdout_stream) + client.output(created.stderr_stream)).decode()


def script(container: str, text: str, **more: Any) -> pb.CreateContainer:
    return creation(container, "sh", "-c", text, user_namespace=True, **more)


def owners(listing: str) -> dict[str, tuple[str, str, str]]:
    """Mode, owner and group by name, of ``ls -ln``."""
    lines = [line.split() for line in listing.splitlines()]
    return {line[-1]: (line[0], line[2], line[3]) for line in lines if len(line) > 5}


def test_the_image_s_owners_are_the_pod_s(pod: Zone, in_pod: Client) -> None:
    text = said(in_pod, script("c1", "cat /proc/self/uid_map; cd /; ls -ln usual last beyond setuid setgid"))
    assert text.split()[:3] == ["0", str(FIRST), str(LENGTH)]
    assert owners(text) == {
        "usual": ("-rw-r-----", "1000", "100"),
        "last": ("-rw-r--r--", "65535", "65535"),
        "beyond": ("-rw-r--r--", "65534", "65534"),
        "setuid": ("-rwsr-xr-x", "0", "0"),
        "setgid": ("-rwxr-sr-x", "7", "8"),
    }
    text = said(
        in_pod, script("c2", "cd /; ls -lnd / sticky capable/cat node dev/null; cd sticky; ls -ln usual")
    )
    assert owners(text) == {
        "/": ("drwxr-x--x", "0", "0"),
        "sticky": ("drwxrwsr-t", "5", "6"),
        "capable/cat": ("-rwxr-xr-x", "3", "4"),
        "node": ("crw-------", "0", "0"),
        "dev/null": ("crw-rw-rw-", "65534", "65534"),
        "usual": ("-rw-r-----", "1000", "100"),
    }
    rootfs = Path(f"/proc/{pod.pid}/root/run/xenpod/containers/c2/rootfs")
    link = os.lstat(rootfs / "sticky/link")
    assert (link.st_uid, link.st_gid) == (FIRST + 9, FIRST + 10)
    beyond = (rootfs / "beyond").stat()
    assert beyond.st_uid not in range(FIRST, FIRST + LENGTH) and beyond.st_gid not in range(
        FIRST, FIRST + LENGTH
    )


def test_capabilities_of_a_file_hold_in_the_pod(in_pod: Client) -> None:
    """The capabilities belong to the pod: a user of the pod who runs the file has them."""
    request = script("c1", "cat /proc/self/status; /capable/cat /proc/self/status")
    config = request.config_json.replace(b'"CAP_CHOWN"', b'"CAP_NET_RAW"')
    request.config_json = config.replace(b'"uid": 0', b'"uid": 1000')
    effective = re.findall(r"CapEff:\s*([0-9a-f]+)", said(in_pod, request))
    assert [int(mask, 16) for mask in effective] == [0, 1 << 13]


def test_root_of_the_pod_may_work_in_its_namespace(in_pod: Client) -> None:
    text = said(
        in_pod,
        script(
            "c1",
            "echo new >/new && echo more >>/usual && cat /new /usual && rm /last && mkdir /d &&"
            " ls -lnd /new /d;"
            "echo again >/dev/stdout; echo x >/etc/resolv.conf; ls -ln /etc/resolv.conf",
        ),
    )
    assert text.startswith("new\nusual\nmore\n")
    assert "again\n" in text
    shown = owners(text)
    assert shown["/new"][1:] == shown["/d"][1:] == shown["/etc/resolv.conf"][1:] == ("0", "0")
    assert "Read-only file system" in text


def test_another_user_has_its_ids_in_the_pod(in_pod: Client) -> None:
    request = script("c1", "cat /usual; echo $?; id -u; echo out >/dev/stdout; cat /dev/stdin", stdin=True)
    request.config_json = request.config_json.replace(b'"uid": 0, "gid": 0', b'"uid": 1000, "gid": 7')
    created = in_pod.call(create_container=request).created
    in_pod.call(start_container=pb.StartContainer(id="c1"))
    in_pod.write(created.stdin_stream, b"in\n", fin=True)
    in_pod.exited("c1")
    assert in_pod.output(created.stdout_stream) == b"usual\n0\n1000\nout\nin\n"


def test_a_terminal_belongs_to_the_pod(in_pod: Client) -> None:
    created = in_pod.call(create_container=script("c1", "ls -lnL /proc/self/fd/0; id -u", tty=True)).created
    in_pod.call(start_container=pb.StartContainer(id="c1"))
    in_pod.exited("c1")
    assert re.match(rb"crw--w---- +1 0 ", in_pod.output(created.stdout_stream))


def test_execs_run_in_the_user_namespace(in_pod: Client) -> None:
    in_pod.call(create_container=script("c1", "sleep 1000"))
    in_pod.call(start_container=pb.StartContainer(id="c1"))
    command = ("sh", "-c", "id -u; cat /proc/self/uid_map; echo x >/dev/stdout")
    created = in_pod.execute("c1", "e1", *command)
    assert in_pod.exited("c1", "e1").exit_code == 0
    assert in_pod.output(created.stdout_stream).split() == [b"0", b"0", b"200000", b"65536", b"x"]


def test_namespaces_of_the_pod_belong_to_its_user_namespace(pod: Zone, in_pod: Client) -> None:
    """The pod's root reaches the zone's network and IPC, within its capabilities."""
    in_pod.call(
        configure_zone=pb.ConfigureZone(
            hostname="web",
            sysctls={
                "net.ipv4.ip_unprivileged_port_start": "1024",
                "kernel.shmmni": "77",
                "fs.mqueue.msg_max": "33",
            },
        )
    )
    request = script(
        "c1",
        "ip link set lo down && ip link set lo up && cat /proc/sys/kernel/shmmni /proc/sys/fs/mqueue/msg_max"
        " /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /sys/class/net",
        mounts=[
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
        ],
    )
    config = request.config_json.replace(b'"CAP_CHOWN"', b'"CAP_CHOWN", "CAP_NET_ADMIN"')
    request.config_json = config.replace(b'{"type": "ipc"}, ', b"")
    assert said(in_pod, request).split() == ["77", "33", "1024", "lo"]


def test_volumes_have_the_pod_s_owners_too(pod: Zone, in_pod: Client) -> None:
    source = "/run/xenpod/containers/c1/volumes/v"
    mount = {"destination": "/v", "type": "bind", "source": source, "options": ["rbind", "ro"]}
    request = script("c1", "cat /v/usual; ls -ln /v/usual /v/beyond; echo x >/v/usual", mounts=[mount])
    request.image_volumes.add(name="v", filesystems=stack("xvda"))
    text = said(in_pod, request)
    assert text.startswith("usual\n") and "Read-only file system" in text
    assert owners(text)["/v/usual"][1:] == ("1000", "100")
    assert owners(text)["/v/beyond"][1:] == ("65534", "65534")
    in_pod.delete("c1")
    assert os.listdir(f"/proc/{pod.pid}/root/run/xenpod/containers") == []
    assert "xenpod/containers" not in Path(f"/proc/{pod.pid}/mounts").read_text()


def test_memory_of_the_pod_is_its_own(in_pod: Client) -> None:
    """A volume in memory, and a part of the volume, belong to ids of the pod."""
    source = "/run/xenpod/containers/c1/volumes"
    mounts = [
        {"destination": f"/{name}", "type": "bind", "source": f"{source}/{name}", "options": ["rbind"]}
        for name in ("m", "part")
    ]
    request = script("c1", "cd /; ls -lnd m part; touch m/new; ls -ln m/new", mounts=mounts)
    values = {"volume": "cache", "mode": 0o2775, "gid": 77}
    request.memory_volumes.add(name="m", **values)
    request.memory_volumes.add(name="part", sub_path="a/b", **values)
    seen = owners(said(in_pod, request))
    assert seen["m"] == seen["part"] == ("drwxrwsr-x", "0", "77")
    assert seen["m/new"][1:] == ("0", "77")


def test_ids_outside_the_pod_are_refused(pod: Zone, in_pod: Client) -> None:
    """The pod's last id is mapped; files of the next id belong to nobody in the pod."""
    request = script("c1", "true")
    for name, number in (("last", LENGTH - 1), ("next", LENGTH)):
        request.memory_volumes.add(name=name, volume=name, mode=0o700, uid=number, gid=number)
    in_pod.call(create_container=request)
    volumes = Path(f"/proc/{pod.pid}/root/run/xenpod/memory")
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in volumes.iterdir()}
    assert owners == {"last": (FIRST + LENGTH - 1,) * 2, "next": (FIRST - 1,) * 2}


def test_files_of_the_pods_owners_do_not_count_for_the_container(in_pod: Client) -> None:
    in_pod.call(create_container=script("c1", "touch /a /b /c; sleep 1000"))
    in_pod.call(start_container=pb.StartContainer(id="c1"))
    in_pod.execute("c1", "e1", "touch", "/d", "/e")
    in_pod.exited("c1", "e1")
    [one] = in_pod.call(get_stats=pb.GetStats()).stats.containers
    assert 2 <= one.writable_layer_inodes < 20
    assert one.writable_layer_bytes < 65536


def test_an_interface_comes_into_the_pod_s_network(outside: int, in_pod: Client) -> None:
    """The interface appears in the kernel's first namespace: before the call, during it, and at a repeat."""
    host = f"xt{uuid.uuid4().hex[:8]}h"
    place = f"/proc/{os.getpid()}/fd/{outside}"
    request = pb.ConfigureNetwork(index=0, name="eth0", addresses=["192.0.2.7/24"])
    call = in_pod.begin(configure_network=request)
    in_pod.call(get_facts=pb.GetFacts())
    assert call not in in_pod.replies
    ip("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", place)
    try:
        in_pod.finish(call)
        in_pod.call(configure_network=request)
        assert "192.0.2.7/24" in said(in_pod, script("c1", "ip -4 addr show eth0"))
        [interface] = in_pod.call(get_stats=pb.GetStats()).stats.zone.interfaces
        assert interface.name == "eth0"
    finally:
        subprocess.run(["ip", "link", "del", host], capture_output=True, check=False)


def test_a_disk_is_awaited_if_the_kernel_reports_disks(
    pod: Zone, in_pod: Client, outside: int, owned_disk: Path
) -> None:
    """A disk becomes live after its node was made: only the first user namespace learns of the disk."""
    call = in_pod.begin(create_container=script("c1", "true", disk="xvdb"))
    in_pod.call(get_facts=pb.GetFacts())
    command = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{outside}", "cat", "/proc/net/netlink"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    hearing = {f"socket:[{row[-1]}]" for row in rows if int(row[1]) == NETLINK_KOBJECT_UEVENT}
    held = {os.readlink(link) for link in Path(f"/proc/{pod.pid}/fd").iterdir()}
    assert hearing & held
    pod.attach("xvdb", owned_disk)
    in_pod.finish(call)


def test_the_loopback_of_the_pod_can_be_dialled(pod: Zone, in_pod: Client) -> None:
    with listen(pod.pid, 8080, "127.0.0.1") as listener:
        dialed = in_pod.call(dial=pb.Dial(port=8080)).dialed
        server, _ = listener.accept()
        with server:
            server.sendall(b"from the pod")
        assert in_pod.output(dialed.out_stream) == b"from the pod"
        in_pod.write(dialed.in_stream, b"", fin=True)


@pytest.mark.parametrize("mapping", [(0, 0), (2**32 - 1, 1), (2**32 - 10, 10)])
def test_invalid_mappings_are_refused(client: Client, mapping: tuple[int, int]) -> None:
    wrong = pb.IdMapping(host_id=mapping[0], length=mapping[1])
    with pytest.raises(Failed) as failed:
        client.call(configure_zone=pb.ConfigureZone(id_mapping=wrong))
    assert failed.value.code == INVALID


def test_a_pod_keeps_its_mapping(in_pod: Client) -> None:
    in_pod.call(configure_zone=pb.ConfigureZone(id_mapping=MAPPING))
    with pytest.raises(Failed) as failed:
        in_pod.call(configure_zone=pb.ConfigureZone(id_mapping=pb.IdMapping(host_id=1, length=LENGTH)))
    assert failed.value.code == REFUSED


@pytest.mark.parametrize("limit", [0, 8 << 20])
def test_files_on_a_scratch_disk_belong_to_the_pods_users(
    pod: Zone, in_pod: Client, tmp_path: Path, limit: int
) -> None:
    """The files of a volume belong to the pod's users too."""
    with writable_loop(tmp_path / "scratch.img", 64 << 20) as device:
        pod.attach("xvdzy", device)
        in_pod.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
        bind = {
            "destination": "/v",
            "type": "bind",
            "source": "/run/xenpod/containers/c1/volumes/0",
            "options": ["rbind", "rw"],
        }
        request = script("c1", "touch /new /v/new && ls -ln /new /v/new; ls -lnd /v", mounts=[bind])
        request.writable_bytes = limit
        request.memory_volumes.add(name="0", volume="cache", uid=7, gid=8, size_bytes=limit, on_disk=True)
        request.memory_volumes[0].mode = 0o2777
        owners = [line.split()[2:4] for line in said(in_pod, request).splitlines()]
        assert owners == [["0", "0"], ["0", "8"], ["7", "8"]]
        run = Path(f"/proc/{pod.pid}/root/run/xenpod")
        assert (run / "containers/c1/writable/upper/new").stat().st_uid == FIRST
        assert (run / "memory/cache/new").stat().st_uid == FIRST
        in_pod.call(delete_container=pb.DeleteContainer(id="c1"))
