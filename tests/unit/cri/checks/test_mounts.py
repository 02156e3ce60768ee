"""Mounts of a container: refusals, and the results of accepted mounts."""

from __future__ import annotations

from typing import Any

import pytest

from cri.checks.mounts import MOST_MOUNTS, check_mounts, place
from cri.checks.userns import PodIdMapping
from cri.container.volumes import plan_volumes
from cri.oci.mounts import arranged
from daemonkit.faults import Fault, Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri

FOLLOW, BOTH = cri.PROPAGATION_HOST_TO_CONTAINER, cri.PROPAGATION_BIDIRECTIONAL


def mount(**fields: Any) -> cri.Mount:
    return cri.Mount(**({"container_path": "/data", "host_path": "/srv"} | fields))


REFUSED: list[tuple[str, cri.Mount, type[Fault], str]] = [
    ("a relative place", mount(container_path="data"), Invalid, "container_path"),
    ("no place", mount(container_path=""), Invalid, "container_path"),
    ("a place up", mount(container_path="/data/../etc"), Invalid, "container_path"),
    ("a place with a NUL", mount(container_path="/da\0ta"), Invalid, "container_path"),
    ("a long place", mount(container_path="/" + "x" * 4095), Invalid, "container_path"),
    ("the root", mount(container_path="//./"), Invalid, "the image"),
    ("proc", mount(container_path="/proc/"), Invalid, "kernel"),
    ("below proc", mount(container_path="//proc/sys/kernel"), Invalid, "kernel"),
    ("no source", mount(host_path=""), Invalid, "neither"),
    ("a relative source", mount(host_path="srv"), Invalid, "host_path"),
    ("a source up", mount(host_path="/srv/../etc"), Invalid, "host_path"),
    ("a source with a NUL", mount(host_path="/s\0v"), Invalid, "host_path"),
    ("two sources", mount(image=cri.ImageSpec(image="x")), Invalid, "and a host_path"),
    ("a part of no image", mount(image_sub_path="etc"), Invalid, "image_sub_path"),
    ("an odd propagation", mount(propagation=7), Invalid, "propagation 7"),
    ("wholly read-only and writable", mount(recursive_read_only=True), Invalid, "without readonly"),
    (
        "wholly read-only and following",
        mount(recursive_read_only=True, readonly=True, propagation=FOLLOW),
        Invalid,
        "PRIVATE",
    ),
    (
        "wholly read-only both ways",
        mount(recursive_read_only=True, readonly=True, propagation=BOTH),
        Invalid,
        "PRIVATE",
    ),
    ("both ways", mount(propagation=BOTH), Refused, "HostToContainer"),
    ("mapped ids", mount(uidMappings=[cri.IDMapping(length=1)]), Invalid, "no user namespace"),
]


@pytest.mark.parametrize(
    ("asked", "kind", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_unsupported_mount_is_refused(asked: cri.Mount, kind: type[Fault], words: str) -> None:
    with pytest.raises(Fault) as raised:
        check_mounts([mount(), asked], None)
    assert type(raised.value) is kind and words in str(raised.value)


def test_mounts_beyond_the_limit_are_refused() -> None:
    check_mounts([mount(container_path=f"/{number}") for number in range(MOST_MOUNTS)], None)
    with pytest.raises(Invalid):
        check_mounts([mount()] * (MOST_MOUNTS + 1), None)


def test_supported_mount_options_are_accepted() -> None:
    fine = [
        mount(selinux_relabel=True),
        mount(readonly=True, recursive_read_only=True),
        mount(readonly=True, propagation=FOLLOW),
        mount(container_path="/process/x", host_path="/..data/a..b"),
    ]
    check_mounts(fine, None)
    ids = [cri.IDMapping(host_id=9, length=5)]
    check_mounts([mount(uidMappings=ids, gidMappings=ids)], PodIdMapping(9, 5))
    for uids, gids in ((ids, []), (ids, [cri.IDMapping(host_id=9, length=6)]), (ids * 2, ids)):
        with pytest.raises(Invalid):
            check_mounts([mount(uidMappings=uids, gidMappings=gids)], PodIdMapping(9, 5))
    with pytest.raises(Invalid, match="not those of its pod"):
        check_mounts([mount(uidMappings=ids, gidMappings=ids)], PodIdMapping(9, 6))


def test_each_is_shared_and_bound_from_there() -> None:
    volumes = plan_volumes(
        "c1",
        [
            mount(),
            mount(container_path="/etc//hosts", host_path="/x/hosts", readonly=True),
            mount(readonly=True, recursive_read_only=True),
            mount(propagation=FOLLOW),
        ],
    )
    assert [volume.name for volume in volumes.shared] == ["0", "1", "2", "3"]
    assert [bind["source"] for bind in volumes.mounts] == [f"/run/xenpod/shared/c1/{name}" for name in "0123"]
    assert [bind["options"] for bind in volumes.mounts] == [
        ["rbind", "rprivate", "rw"],
        ["rbind", "rprivate", "ro"],
        ["rbind", "rprivate", "rro"],
        ["rbind", "rslave", "rw"],
    ]
    assert volumes.mounts[1]["destination"] == "/etc/hosts"
    flags = [(each.readonly, each.follow_host) for each in volumes.shared]
    assert flags == [(False, False), (True, False), (True, False), (False, True)]
    assert volumes.follows_host and not plan_volumes("c1", [mount()]).follows_host
    assert all(volume.create_directory for volume in volumes.shared)


@pytest.mark.parametrize(
    ("text", "one"), [("/a", "/a"), ("//a//b/", "/a/b"), ("/./a/.", "/a"), ("/", "/"), ("///", "/")]
)
def test_container_paths_are_normalized(text: str, one: str) -> None:
    assert place(text) == one


def test_requested_mounts_replace_default_mounts_and_hide_no_other() -> None:
    def at(destination: str, source: str) -> dict[str, object]:
        return {"destination": destination, "source": source}

    usual = [at(where, "usual") for where in ("/proc", "/dev", "/dev/pts", "/dev/shm", "/etc/hosts", "/sys")]
    asked = [at("/data/deep", "asked"), at("/etc/hosts", "asked"), at("/data", "asked"), at("/etc", "asked")]
    made = [(each["destination"], each["source"]) for each in arranged(usual, asked)]
    assert ("/etc/hosts", "usual") not in made and ("/etc/hosts", "asked") in made
    order = [destination for destination, _ in made]
    assert order.index("/data") < order.index("/data/deep") and order.index("/etc") < order.index(
        "/etc/hosts"
    )
    assert order.index("/dev") < order.index("/dev/pts") and len(made) == 9
    whole = arranged(usual, [at("/dev", "asked")])
    assert [each["destination"] for each in whole] == ["/proc", "/sys", "/dev", "/etc/hosts"]


def test_the_later_of_two_mounts_is_on_top() -> None:
    made = arranged([], [{"destination": "/a", "source": number} for number in range(3)])
    assert [each["source"] for each in made] == [0, 1, 2]
