"""File volumes: versions that come in parts and appear as a whole, files written in place, their ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, MISSING, EXISTS, REFUSED = 3, 5, 6, 9
ROOT = pb.FileEntry(type=pb.FILE_TYPE_DIRECTORY, mode=0o755)


def directory(path: str, mode: int = 0o755) -> pb.FileEntry:
    return pb.FileEntry(path=path, type=pb.FILE_TYPE_DIRECTORY, mode=mode)


def regular(path: str, text: str, mode: int = 0o644, **more: Any) -> pb.FileEntry:
    return pb.FileEntry(path=path, type=pb.FILE_TYPE_REGULAR, mode=mode, content=text.encode(), **more)


def link(path: str, target: str) -> pb.FileEntry:
    return pb.FileEntry(path=path, type=pb.FILE_TYPE_SYMLINK, content=target.encode())


def put(client: Client, version: str, entries: Sequence[pb.FileEntry], **more: object) -> None:
    values: dict[str, object] = {"volume": "v", "first": True, "last": True, "size_bytes": 1 << 20}
    client.call(put_files=pb.PutFiles(version=version, entries=entries, **(values | more)))  # type: ignore[arg-type]


def put_version(client: Client, number: int, files: dict[str, str]) -> None:
    """As the host puts the files of an AtomicWriter."""
    top = f"..{number}"
    entries = [ROOT, directory(top), *(regular(f"{top}/{name}", text) for name, text in files.items())]
    links = [link("..data", top), *(link(name, f"..data/{name}") for name in files)]
    put(client, f"v{number}", entries, last=False)
    put(client, f"v{number}", links, first=False, keep=["..data", top, *files])


def with_files(container: str, script: str, *, owner: str = "", options: str = "ro") -> pb.CreateContainer:
    """At /v of the container."""
    source = f"/run/xenpod/containers/{container}/volumes/0"
    mount = {"destination": "/v", "type": "bind", "source": source, "options": ["rbind", options]}
    request = creation(container, "sh", "-c", script, mounts=[mount])
    request.file_volumes.add(name="0", owner=owner, volume="v")
    return request


def begun(client: Client, request: pb.CreateContainer) -> pb.ProcessCreated:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    return created


def said(client: Client, request: pb.CreateContainer) -> str:
    created = begun(client, request)
    client.exited(request.id)
    text = (client.output(created.stdout_stream) + client.output(created.stderr_stream)).decode()
    client.delete(request.id)
    return text


def tree(zone: Zone) -> Path:
    return Path(f"/proc/{zone.pid}/root/run/xenpod/files")


def test_the_agent_announces_file_volumes(client: Client) -> None:
    assert client.hello is not None and client.hello.file_volumes


def test_a_new_version_replaces_the_files(zone: Zone, client: Client) -> None:
    put_version(client, 1, {"a": "one\n", "b": "old\n"})
    assert said(client, with_files("c1", "cat /v/a /v/b; echo no > /v/a")).startswith("one\nold\nsh: ")
    put_version(client, 2, {"a": "two\n", "c": "new\n"})
    script = "cd /v; ls -A; cat a c; case \"$(ls -l ..data)\" in *' ..2') echo link;; esac"
    shown = said(client, with_files("c2", script)).split()
    assert shown == ["..2", "..data", "a", "c", "two", "new", "link"]
    with pytest.raises(Failed) as failed:
        put_version(client, 2, {"a": "other\n"})
    assert failed.value.code == EXISTS
    assert said(client, with_files("c3", "cat /v/a")) == "two\n"


def test_a_version_is_not_seen_before_its_last_part(zone: Zone, client: Client) -> None:
    put_version(client, 1, {"a": "one\n"})
    put(client, "v2", [directory("..2"), regular("..2/a", "tw", more=True)], last=False)
    assert said(client, with_files("c1", "cat /v/a /v/..data/a")) == "one\none\n"
    # The begun version is given up for the next version.
    put_version(client, 3, {"a": "three\n"})
    assert said(client, with_files("c2", "cat /v/a; ls -A /v")).split() == ["three", "..3", "..data", "a"]
    long = "x" * 300_000
    entries = [directory("..4"), regular("..4/a", long, more=True)]
    put(client, "v4", entries, last=False)
    put(client, "v4", [regular("..4/a", long, mode=0o400)], first=False, last=False)
    put(client, "v4", [link("..data", "..4")], first=False, keep=["..4", "..data", "a"])
    assert said(client, with_files("c3", "wc -c < /v/a; ls -lL /v/a")).startswith("600000\n-r--------")


def test_modes_and_owners_are_kept(zone: Zone, client: Client) -> None:
    entries = [
        pb.FileEntry(type=pb.FILE_TYPE_DIRECTORY, mode=0o2750, uid=5, gid=6),
        regular("a", "", mode=0o640, uid=7, gid=8),
    ]
    put(client, "v1", entries, keep=["a"])
    words = said(client, with_files("c1", "ls -ln /v; ls -ldn /v")).split()
    assert [words[2:6], words[11:15]] == [["-rw-r-----", "1", "7", "8"], ["drwxr-s---", "2", "5", "6"]], words


def test_a_file_is_written_in_place(zone: Zone, client: Client) -> None:
    put(client, "v1", [regular("", "one\n")])
    script = "cat /v; echo seen; read; cat /v; echo mine >> /v; echo done; read; cat /v"
    request = with_files("c1", script, options="rw")
    request.stdin = True
    created = begun(client, request)

    def shown() -> bytes:
        stream = client.streams.get(created.stdout_stream)
        return bytes(stream.data) if stream else b""

    # A reader of the old file gets the rest of the next version.
    client.until(lambda: shown() == b"one\nseen\n", "one")
    put(client, "v2", [regular("", "second\n")])
    client.write(created.stdin_stream, b"\n")
    client.until(lambda: shown().endswith(b"done\n"), "second")
    assert said(client, with_files("c2", "cat /v")) == "second\nmine\n", "one file for all containers"
    put(client, "v3", [regular("", "3\n")])
    client.write(created.stdin_stream, b"\n")
    client.exited("c1")
    assert client.output(created.stdout_stream) == b"one\nseen\nsecond\ndone\n3\n"


def test_file_written_by_a_container_is_read_until_its_deletion(zone: Zone, client: Client) -> None:
    """A container's own file is readable after its end, and is deleted with the container."""
    put(client, "v1", [regular("", "", mode=0o666)], owner="c1")
    request = with_files("c1", "head -c 5000 /dev/zero > /v; echo last >> /v", owner="c1", options="rw")
    begun(client, request)
    client.exited("c1")

    def read(most: int) -> bytes:
        return client.call(read_file=pb.ReadFile(owner="c1", volume="v", most=most)).content.content

    assert read(4096) == b"\0" * 4091 + b"last\n" and read(5) == b"last\n"
    for most in (0, 4097):
        with pytest.raises(Failed) as failed:
            read(most)
        assert failed.value.code == INVALID
    client.delete("c1")
    with pytest.raises(Failed) as failed:
        read(5)
    assert failed.value.code == MISSING and os.listdir(tree(zone)) == []
    put(client, "v1", [ROOT], owner="c2", volume="of-one-that-never-was")
    client.delete("c2")
    assert os.listdir(tree(zone)) == []


def test_no_path_leads_out_of_a_file_volume(zone: Zone, client: Client) -> None:
    """Traps of a container with the zone's root lead nowhere."""
    put(client, "v1", [ROOT, directory("d"), link("l", "/run/xenpod"), link("d/l", "..")], keep=["d", "l"])
    for entry in (regular("l/x", ""), regular("d/l/x", ""), directory("l/x"), link("l/x", "a")):
        with pytest.raises(Failed):
            put(client, "v2", [entry])
    assert not (tree(zone).parent / "x").exists()
    put(client, "v3", [regular("l", "a file now")], keep=["l"])
    root = tree(zone) / "_zone/v/root"
    assert (root / "l").read_text() == "a file now" and os.listdir(root) == ["l"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"volume": "a/b"},
        {"volume": ".."},
        {"owner": "A"},
        {"owner": "_zone"},
        {"version": ""},
        {"version": "V/1"},
        {"size_bytes": 0},
        {"entries": [regular("", "", mode=0o10000)]},
        {"entries": [regular("a/..", "")]},
        {"entries": [regular("a/", "")]},
        {"entries": [link("", "a")]},
        {"entries": [link("a", "")]},
        {"entries": [link("a", "x\0y")]},
        {"entries": [link("a", "x" * 4097)]},
        {"entries": [pb.FileEntry(path="a")]},
    ],
)
def test_malformed_file_volume_is_refused(client: Client, wrong: dict[str, object]) -> None:
    put(client, "v0", [ROOT, directory("a")], keep=["a"])
    values: dict[str, object] = {"version": "v1", "entries": [ROOT]}
    with pytest.raises(Failed) as failed:
        put(client, **(values | wrong))  # type: ignore[arg-type]
    assert failed.value.code == INVALID


def test_file_volumes_beyond_their_room_are_refused(zone: Zone, client: Client) -> None:
    for _ in range(2):
        with pytest.raises(Failed, match="No space left"):
            put(
                client,
                "v3",
                [ROOT, *(regular(f"f{n}", "y" * 200_000) for n in range(4))],
                last=False,
                volume="w",
            )
            put(client, "v3", [regular(f"g{n}", "y" * 200_000) for n in range(4)], first=False, volume="w")
    put(client, "v4", [ROOT, regular("small", "fits")], volume="w", keep=["small"])
    assert os.listdir(tree(zone) / "_zone/w/root") == ["small"]


def test_containers_with_missing_volumes_are_refused(client: Client) -> None:
    for change in ({"volume": "missing"}, {"owner": "c9"}):
        request = with_files("c1", "true")
        for name, value in change.items():
            setattr(request.file_volumes[0], name, value)
        with pytest.raises(Failed, match="No such file"):
            client.call(create_container=request)
    for name, owner, volume in (("..", "", "v"), ("0", "X", "v"), ("0", "", "a/b")):
        request = creation("c1", "true")
        request.file_volumes.add(name=name, owner=owner, volume=volume)
        with pytest.raises(Failed) as failed:
            client.call(create_container=request)
        assert failed.value.code == INVALID
    request = creation("c1", "true")
    request.shared_volumes.append("a/b")
    with pytest.raises(Failed) as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID
