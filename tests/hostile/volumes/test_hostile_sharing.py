"""A zone's file server has a hostile client: nothing but the share is in its reach, and nothing grows."""

from __future__ import annotations

import errno
import os
import random
import select
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from protect.host import mounts
from protect.volumes.area import Area
from tests.support.protect.daemons import GUEST
from tests.support.share.client import NinePClient, SessionOver, Type, text
from tests.support.share.server import ShareServer
from tests.support.share.volumes import area, show, shown, source

__all__ = ["area", "shown", "source"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not (GUEST / "share").exists(), reason="needs the guest parts (make zone)"),
]

KEPT = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "SETGID": 6, "SETUID": 7}
MOST_KIB = 8192


@pytest.fixture
def server(tmp_path: Path, area: Area, shown: Path) -> Iterator[ShareServer]:
    running = ShareServer(GUEST / "share", area.namespace, tmp_path / "server")
    yield running
    running.stop()


@pytest.fixture
def client(server: ShareServer) -> NinePClient:
    return server.client


@pytest.fixture
def volume(client: NinePClient) -> int:
    """The fid of w/0."""
    return client.walk(client.begin(), "w", "0")


def refused(call: Callable[[], object], *numbers: int) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno in numbers, caught.value


def test_file_server_sees_nothing_of_the_host(server: ShareServer, volume: int) -> None:
    place = Path(f"/proc/{server.pid}")
    assert os.listdir(place / "root") == ["w"]
    for name in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup"):
        assert os.readlink(place / "ns" / name) != os.readlink(f"/proc/self/ns/{name}"), name
    mounted = [line.split()[4] for line in (place / "mountinfo").read_text().splitlines()]
    assert {each.split("/")[1] for each in mounted} == {"", "w"}
    opened = sorted(os.readlink(place / "fd" / each) for each in os.listdir(place / "fd"))
    log = str(server.directory / "log")
    others = [each for each in opened if each not in (log, "/dev/null") and not each.startswith("socket:")]
    # Its own descriptors (of a proc mounted nowhere), the root's fid, and the fid of w/0.
    assert [Path(each).name for each in others if each not in ("/", "/w/0")] == ["fd"], opened
    (own,) = (each for each in (place / "fd").iterdir() if os.readlink(each).endswith("/fd"))
    # Root may write to files of a whole proc without any capability.
    assert {each for each in os.listdir(f"{own}/../..") if not each.isdigit()} <= {"self", "thread-self"}


def test_file_server_has_only_capabilities_for_file_ownership(server: ShareServer, volume: int) -> None:
    kept = sum(1 << number for number in KEPT.values())
    for which in ("CapBnd", "CapPrm", "CapEff"):
        assert int(server.status(which), 16) == kept
    assert server.status("CapInh").strip("0") == server.status("CapAmb").strip("0") == ""
    assert server.status("NoNewPrivs") == "1" and server.status("Seccomp") == "2"
    assert server.status("Threads") == "1"
    limits = Path(f"/proc/{server.pid}/limits").read_text()
    assert "Max core file size        0 " in limits and "Max address space         67108864" in limits
    assert int(Path(f"/proc/{server.pid}/oom_score_adj").read_text()) >= 100
    assert (Path(f"/proc/{server.pid}/uid_map").read_text().split()) == ["0", "0", "4294967295"]


def test_file_server_has_a_lower_cpu_priority_than_daemons(server: ShareServer) -> None:
    """A guest can send requests all the time: 20 guests would leave dom0 a twentieth of a CPU."""
    assert os.getpriority(os.PRIO_PROCESS, server.pid) == 10
    group = Path(f"/proc/{server.pid}/autogroup")
    assert not group.exists() or group.read_text().split()[-1] == "10"


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/", "../..", "../../../etc", "/etc/passwd", "w/0", b"x" * 256, b"a\0b"]
)
def test_name_with_several_components_is_refused(
    server: ShareServer, client: NinePClient, volume: int, source: Path, name: str | bytes
) -> None:
    broken = isinstance(name, bytes)
    root = client.attach()
    for call in (
        lambda: client.walk(root, name),
        lambda: client.walk(volume, name),
        lambda: client.walk(root, "w", name),
        lambda: client.mkdir(volume, name),
        lambda: client.create(client.walk(volume), name),
    ):
        if broken:
            with pytest.raises(SessionOver):
                call()
            assert "broke the protocol" in server.wait_end()
            break
        refused(call, errno.EINVAL, errno.ENOENT)
    assert os.listdir(source) == ["marker"]


def test_symbolic_links_lead_nowhere(client: NinePClient, volume: int, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of the host")
    for number, target in enumerate((str(outside), "/", "..", "../../..", "/proc/self/root", "/etc")):
        name = f"link{number}"
        client.symlink(volume, name, target)
        there = client.walk(volume, name)
        assert stat.S_ISLNK(client.getattr(there).mode) and client.readlink(there) == target
        refused(lambda there=there: client.open(there), errno.EPERM, errno.ELOOP)  # type: ignore[misc]
        refused(lambda there=there: client.walk(there, "secret"), errno.ENOTDIR)  # type: ignore[misc]
        refused(lambda name=name: client.walk(volume, name, "secret"), errno.ENOENT)  # type: ignore[misc]
        refused(lambda there=there: client.mkdir(there, "new"), errno.ENOTDIR)  # type: ignore[misc]
        new = client.walk(volume)
        refused(lambda new=new, name=name: client.create(new, name), errno.ELOOP)  # type: ignore[misc]
        refused(lambda there=there: client.setattr(there, 1, mode=0o777), errno.EOPNOTSUPP)  # type: ignore[misc]
    client.symlink(volume, "file", str(outside / "secret"))
    refused(lambda: client.create(client.walk(volume), "file", os.O_RDWR | os.O_TRUNC), errno.ELOOP)
    refused(lambda: client.setattr(client.walk(volume, "file"), 8, size=0), errno.EPERM)
    # A link to the symbolic link itself, not to its target.
    client.link(volume, client.walk(volume, "file"), "hard")
    assert os.readlink(source / "hard") == str(outside / "secret")
    assert (outside / "secret").read_text() == "of the host" and os.listdir(outside) == ["secret"]


def test_fid_of_a_renamed_directory_does_not_follow_its_old_name(
    client: NinePClient, volume: int, source: Path
) -> None:
    """The fid stays with the directory if another file takes the old name: no path is left for a race."""
    client.mkdir(volume, "d")
    held = client.walk(volume, "d")
    client.rename(volume, "d", volume, "moved")
    client.symlink(volume, "d", "/")
    client.mkdir(held, "inside")
    assert os.listdir(source / "moved") == ["inside"]


def test_devices_and_pipes_are_not_opened_or_made(client: NinePClient, volume: int, source: Path) -> None:
    os.mkfifo(source / "pipe")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name in ("pipe", "null"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            refused(lambda name=name, flags=flags: client.open(client.walk(volume, name), flags), errno.EPERM)  # type: ignore[misc]
            new = client.walk(volume)
            refused(partial(client.create, new, name, flags), errno.EPERM, errno.EACCES, errno.ENXIO)
    for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR, stat.S_IFLNK):
        refused(lambda kind=kind: client.mknod(volume, "made", kind | 0o666, 1, 3), errno.EPERM)  # type: ignore[misc]
    client.mknod(volume, "socket", stat.S_IFSOCK | 0o600)
    assert "made" not in os.listdir(source)


def test_creation_of_an_existing_pipe_does_not_open_the_pipe(
    area: Area, client: NinePClient, volume: int, source: Path
) -> None:
    """The pipe's reader would notice a writer, also through a read-only volume."""
    os.mkfifo(source / "pipe")
    show(area, source, "1", add=mounts.MOUNT_ATTR_RDONLY)
    readonly = client.walk(client.attach(), "w", "1")
    reader = os.open(source / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        heard = select.poll()
        heard.register(reader, 0)
        for directory in (volume, readonly):
            refused(lambda at=directory: client.create(client.walk(at), "pipe", os.O_WRONLY), errno.EPERM)  # type: ignore[misc]
            assert not heard.poll(0)
    finally:
        os.close(reader)


def test_creation_of_an_existing_file_opens_the_file(client: NinePClient, volume: int, source: Path) -> None:
    """As another client of the host may have made the file in the meantime."""
    client.create(client.walk(volume, to=900), "marker", os.O_RDWR)
    assert client.read(900, 0, 100) == b"of the host\n"
    refused(lambda: client.create(client.walk(volume), "marker", os.O_RDWR | os.O_EXCL), errno.EEXIST)
    client.create(client.walk(volume), "marker", os.O_WRONLY | os.O_TRUNC)
    assert (source / "marker").read_text() == ""
    client.mkdir(volume, "d")
    refused(lambda: client.create(client.walk(volume), "d"), errno.EISDIR)


def test_read_only_is_read_only(
    tmp_path: Path, area: Area, client: NinePClient, volume: int, source: Path
) -> None:
    show(area, source, "1", add=mounts.MOUNT_ATTR_RDONLY)
    root = client.attach()
    there, file = client.walk(root, "w", "1"), client.walk(root, "w", "1", "marker")
    for call in (
        lambda: client.open(client.walk(file), os.O_WRONLY),
        lambda: client.setattr(file, 1, mode=0o777),
        lambda: client.setattr(file, 2, uid=1),
        lambda: client.setattr(file, 8, size=0),
        lambda: client.unlink(there, "marker"),
        lambda: client.mkdir(there, "new"),
        lambda: client.create(client.walk(there), "new"),
        lambda: client.rename(there, "marker", there, "other"),
        lambda: client.set_xattr(file, "user.a", b"b"),
        lambda: client.mkdir(root, "new"),
        lambda: client.mkdir(client.walk(root, "w"), "new"),
    ):
        refused(call, errno.EROFS)
    # No links from a volume into another.
    refused(lambda: client.link(volume, file, "linked"), errno.EXDEV)
    assert os.listdir(source) == ["marker"] and (source / "marker").read_text() == "of the host\n"


def test_files_of_all_users(client: NinePClient, volume: int, source: Path) -> None:
    """The guest's kernel checks its users' rights; the server has the rights of a volume's owner."""
    (source / "closed").mkdir(mode=0o700)
    os.chown(source / "closed", 1234, 1234)
    other = client.attach(4321)
    there = client.walk(other, "w", "0", "closed")
    client.create(client.walk(there, to=900), "new", os.O_RDWR, 0o640, 777)
    found = (source / "closed/new").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 777, 0o640)
    client.setattr(900, 7, mode=0o4755, uid=0, gid=0)
    found = (source / "closed/new").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o4755)
    refused(lambda: client.set_xattr(client.walk(there, "new"), "trusted.a", b"b"), errno.EPERM)


def test_fids_have_a_bound(server: ShareServer, client: NinePClient, volume: int) -> None:
    body = struct.Struct("<IIH")
    made = 0
    while True:
        try:
            client.call(Type.WALK, body.pack(volume, 10_000 + made, 0))
        except OSError as error:
            assert error.errno == errno.EMFILE
            break
        made += 1
    assert 9_000 < made < 32_768
    assert int(server.status("VmRSS").split()[0]) < MOST_KIB
    client.clunk(10_000)
    client.walk(volume)


def test_extended_attributes_under_way_have_a_bound(
    server: ShareServer, client: NinePClient, volume: int
) -> None:
    for number in range(16):
        fid = client.walk(volume, to=500 + number)
        client.call(Type.XATTRCREATE, struct.pack("<I", fid) + text("user.a") + struct.pack("<QI", 65536, 0))
        assert client.write(fid, b"x" * 65536) == 65536
    one = client.walk(volume)
    huge = struct.pack("<I", one) + text("user.a") + struct.pack("<QI", 1 << 60, 0)
    refused(lambda: client.call(Type.XATTRCREATE, huge), errno.E2BIG)
    more = struct.pack("<I", one) + text("user.a") + struct.pack("<QI", 1, 0)
    refused(lambda: client.call(Type.XATTRCREATE, more), errno.EMFILE)
    refused(lambda: client.write(500, b"x", 65536), errno.EINVAL)
    assert int(server.status("VmRSS").split()[0]) < MOST_KIB


def test_huge_counts_are_bounded_or_end_the_session(
    server: ShareServer, client: NinePClient, volume: int
) -> None:
    client.create(client.walk(volume, to=800), "big")
    client.setattr(800, 8, size=1 << 30)
    got = client.read(800, 0, 0xFFFFFFFF)
    assert 0 < len(got) <= client.msize
    refused(lambda: client.read(800, 0xFFFFFFFFFFFFFFFF, 1), errno.EINVAL)
    refused(lambda: client.setattr(800, 8, size=1 << 63), errno.EFBIG)
    client.open(client.walk(volume, to=801))
    refused(lambda: client.call(Type.READDIR, struct.pack("<IQI", 801, 0, 1)), errno.EINVAL)
    assert int(server.status("VmRSS").split()[0]) < MOST_KIB
    client.send(Type.WRITE, struct.pack("<IQI", 800, 0, 0xFFFFFFFF) + b"x")
    with pytest.raises(SessionOver):
        client.receive()
    assert server.wait_end() == "share: the zone broke the protocol: a message that is none"


@pytest.mark.parametrize("length", [0, 6, 1 << 20, 0xFFFFFFFF])
def test_messages_of_impossible_lengths(server: ShareServer, client: NinePClient, length: int) -> None:
    client.raw(struct.pack("<IBH", length, Type.VERSION, 1))
    with pytest.raises(SessionOver):
        client.receive()
    assert server.wait_end() == "share: the zone broke the protocol: a message of an impossible length"


def test_requests_of_a_client_with_unread_answers_are_not_read(
    server: ShareServer, client: NinePClient, volume: int
) -> None:
    """A flood waits in the client's own buffers: a request is taken when the last one is answered."""
    client.socket.setblocking(False)
    sent = 0
    message = struct.pack("<IBHIQ", 19, Type.GETATTR, 1, volume, 0x7FF)
    try:
        while sent < 64 << 20:
            sent += client.socket.send(message * 1000)
    except BlockingIOError:
        pass
    assert sent < 16 << 20
    assert int(server.status("VmRSS").split()[0]) < MOST_KIB
    client.socket.setblocking(True)


def test_file_server_ends_with_its_clients_connection(
    server: ShareServer, client: NinePClient, volume: int
) -> None:
    client.close()
    assert server.wait_end() == "share: the zone closed the connection"


def test_the_end_of_a_server_reaches_its_client(
    server: ShareServer, client: NinePClient, volume: int
) -> None:
    os.kill(server.pid, 9)
    with pytest.raises(SessionOver):
        client.call(Type.STATFS, struct.pack("<I", volume))


def messages(seed: int) -> bytes:
    """Correct messages, then nearly correct messages, then garbage."""
    chance = random.Random(seed)
    kinds = [value for name, value in vars(Type).items() if name.isupper()]
    version = struct.pack("<I", chance.choice([8192, 131072, 1 << 30])) + text("9P2000.L")
    out = [(Type.VERSION, version)]
    out.append((Type.ATTACH, struct.pack("<II", 1, 0xFFFFFFFF) + text("") + text("") + struct.pack("<I", 0)))
    out.append((Type.WALK, struct.pack("<IIH", 1, 2, 1) + text("a")))
    out.append((Type.LOPEN, struct.pack("<II", 2, os.O_RDWR)))
    for _ in range(chance.randrange(1, 60)):
        body = b""
        for _ in range(chance.randrange(8)):
            body += chance.choice(
                [
                    struct.pack("<I", chance.randrange(6)),
                    struct.pack("<I", chance.choice([0xFFFFFFFF, 1 << 31, 4096])),
                    struct.pack("<Q", chance.choice([0, 1 << 63, 0xFFFFFFFFFFFFFFFF, 65536])),
                    text(chance.choice(["a", "b", "..", "user.x", "\xff" * 200, ""])),
                    chance.randbytes(chance.randrange(20)),
                ]
            )
        out.append((chance.choice([*kinds, chance.randrange(256)]), body))
    return b"".join(
        struct.pack("<IBH", 7 + len(body), kind, number & 0xFFFF) + body
        for number, (kind, body) in enumerate(out)
    )


def test_random_messages_break_nothing(tmp_path: Path) -> None:
    """The parser and the handlers run under the sanitizers."""
    checker = GUEST / "sharecheck"
    if not checker.exists():
        pytest.skip("needs make -C hostc check-tools")
    for seed in range(int(os.environ.get("XENPOD_FUZZ", "300"))):
        directory = tmp_path / str(seed % 16)
        directory.mkdir(exist_ok=True)
        (directory / "a").write_text("a")
        done = subprocess.run(
            [str(checker), str(directory)],
            input=messages(seed),
            env={"ASAN_OPTIONS": "detect_leaks=0"},  # else the program looks at a /proc that does not exist
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 1) and not done.stderr, (seed, done.stderr.decode(errors="replace"))
