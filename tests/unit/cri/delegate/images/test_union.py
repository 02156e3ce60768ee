"""Joining two image stores, and remembering pulls, without a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri.delegate.images.pull_memory import (
    LIFETIME_SECONDS,
    MOST_SECRETS,
    MOST_SIDES,
    SECRET_BYTES,
    PullMemory,
)
from cri.delegate.images.union import Disk, disk_of, filesystems, joined, united
from cri.delegate.owners import Owner
from images.registry import names
from xenpod_proto.cri.v1 import runtime_pb2 as cri

AUTH = cri.AuthConfig(username="kube", password="secret")


def image(image_id: str, *tags: str, size: int = 1, **fields: object) -> cri.Image:
    return cri.Image(id=image_id, repo_tags=tags, size=size, **fields)  # type: ignore[arg-type]


def ours(_: str) -> Owner:
    return Owner.OURS


def test_an_image_of_both_has_all_names_and_both_sizes() -> None:
    mine = image("i", "a:1", "b:1", size=10, repo_digests=["a@x"], username="app")
    theirs = image("i", "b:1", "c:1", size=5, repo_digests=["a@x", "a@y"], pinned=True)
    one = united(mine, theirs)
    assert list(one.repo_tags) == ["a:1", "b:1", "c:1"]
    assert list(one.repo_digests) == ["a@x", "a@y"]
    assert (one.size, one.pinned, one.username) == (15, True, "app")
    assert (mine.size, theirs.size, list(theirs.repo_tags)) == (10, 5, ["b:1", "c:1"])


@pytest.mark.parametrize("pinned", [(False, False), (True, False), (False, True)])
def test_a_pin_of_either_side_counts_for_both(pinned: tuple[bool, bool]) -> None:
    assert united(image("i", pinned=pinned[0]), image("i", pinned=pinned[1])).pinned is any(pinned)


def test_impossible_sizes_stay_within_their_fields() -> None:
    most = 2**64 - 1
    assert united(image("i", size=1), image("i", size=most)).size == most
    disks = {"/x": Disk(1, 0.5), "/c": Disk(1, 0.5)}
    answer = filesystems(info(usage("/x", 10, 1)), info(usage("/c", most, most)), disks.get)
    (sum_up,) = answer.image_filesystems
    assert (sum_up.used_bytes.value, sum_up.inodes_used.value) == (most, most)


def test_unknown_fields_of_the_delegate_stay() -> None:
    theirs = cri.Image.FromString(image("i").SerializeToString() + b"\xba\x3e\x05later")
    assert b"later" in united(image("i"), theirs).SerializeToString()


@pytest.mark.parametrize(("side", "kept"), [(Owner.OURS, "mine"), (Owner.DELEGATE, "theirs")])
def test_a_tag_is_shown_with_its_image(side: Owner, kept: str) -> None:
    listed = joined([image("mine", "a:1", "b:1")], [image("theirs", "a:1", "c:1")], lambda _: side)
    tags = {one.id: set(one.repo_tags) for one in listed}
    expected = {"mine": {"b:1"}, "theirs": {"c:1"}}
    expected[kept].add("a:1")
    assert tags == expected


def test_no_image_is_lost_and_none_is_twice() -> None:
    listed = joined([image("a"), image("b")], [image("b"), image("c")], ours)
    assert sorted(one.id for one in listed) == ["a", "b", "c"]


def usage(mountpoint: str, used: int, inodes: int = 0) -> cri.FilesystemUsage:
    made = cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint=mountpoint))
    made.used_bytes.value, made.inodes_used.value = used, inodes
    return made


def info(*entries: cri.FilesystemUsage) -> cri.ImageFsInfoResponse:
    return cri.ImageFsInfoResponse(image_filesystems=entries, container_filesystems=entries)


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        # One disk: the sum, at our path.
        ({"/x": Disk(1, 0.5), "/c": Disk(1, 0.5)}, [("/x", 30, 3)]),
        # Two disks: the kubelet looks at the first entry, therefore the fuller disk comes first.
        ({"/x": Disk(1, 0.5), "/c": Disk(2, 0.4)}, [("/x", 10, 1), ("/c", 20, 2)]),
        ({"/x": Disk(1, 0.5), "/c": Disk(2, 0.6)}, [("/c", 20, 2), ("/x", 10, 1)]),
        # A missing path is another disk with unknown figures.
        ({"/x": Disk(1, 0.5)}, [("/x", 10, 1), ("/c", 20, 2)]),
    ],
)
def test_filesystems_as_the_kubelet_counts_them(
    disks: dict[str, Disk], expected: list[tuple[str, int, int]]
) -> None:
    answer = filesystems(info(usage("/x", 10, 1)), info(usage("/c", 20, 2)), disks.get)
    for entries in (answer.image_filesystems, answer.container_filesystems):
        seen = [(one.fs_id.mountpoint, one.used_bytes.value, one.inodes_used.value) for one in entries]
        assert seen == expected


def test_a_disk_is_told_by_its_device(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    here, below, elsewhere = disk_of(str(tmp_path)), disk_of(str(tmp_path / "a")), disk_of("/proc")
    assert here is not None and below is not None and elsewhere is not None
    assert here.device == below.device != elsewhere.device
    assert 0 <= here.used <= 1
    assert disk_of(str(tmp_path / "nothing")) is None and disk_of("a\0b") is None


def test_the_last_pull_of_a_name_decides_its_side() -> None:
    memory = PullMemory()
    assert memory.side("busybox") is Owner.OURS
    memory.pulled("busybox", Owner.DELEGATE, cri.AuthConfig())
    assert memory.side("docker.io/library/busybox:latest") is Owner.DELEGATE
    assert memory.side("busybox:2") is Owner.OURS
    memory.pulled("busybox:latest", Owner.OURS, cri.AuthConfig())
    assert memory.side("busybox") is Owner.OURS
    memory.pulled("Not A Name", Owner.DELEGATE, AUTH)
    assert memory.side("Not A Name") is Owner.OURS


def test_credentials_are_for_their_repository_only() -> None:
    memory = PullMemory()
    memory.pulled("registry.example/a/b:1", Owner.OURS, AUTH)
    assert memory.auth(names.parse("registry.example/a/b:2")) == AUTH
    for other in ("registry.example/a:1", "registry.example/a/b/c", "other.example/a/b"):
        assert memory.auth(names.parse(other)) is None
    # A pull without credentials removes no other pull's credentials.
    memory.pulled("registry.example/a/b:1", Owner.OURS, cri.AuthConfig())
    assert memory.auth(names.parse("registry.example/a/b")) == AUTH


def test_credentials_are_forgotten() -> None:
    now = 0.0
    memory = PullMemory(lambda: now)
    memory.pulled("registry.example/a", Owner.OURS, AUTH)
    now = LIFETIME_SECONDS - 1
    assert memory.auth(names.parse("registry.example/a")) is not None
    now = LIFETIME_SECONDS
    assert memory.auth(names.parse("registry.example/a")) is None
    for number in range(MOST_SECRETS + 1):
        memory.pulled(f"registry.example/{number}", Owner.OURS, AUTH)
    assert memory.auth(names.parse("registry.example/0")) is None
    assert memory.auth(names.parse("registry.example/1")) is not None
    memory.pulled("registry.example/huge", Owner.OURS, cri.AuthConfig(registry_token="x" * SECRET_BYTES))
    assert memory.auth(names.parse("registry.example/huge")) is None


def test_names_are_forgotten() -> None:
    memory = PullMemory()
    for number in range(MOST_SIDES + 1):
        memory.pulled(f"registry.example/{number}", Owner.DELEGATE, cri.AuthConfig())
    assert memory.side("registry.example/0") is Owner.OURS
    assert memory.side("registry.example/1") is Owner.DELEGATE
