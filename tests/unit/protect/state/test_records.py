"""Records of zones and workloads: their JSON on the disk never changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from daemonkit.faults import Broken
from protect.model.domain.shares import CpuShares
from protect.model.process import Streams
from protect.model.toolstack import DomainId, DomainKernel, Mode
from protect.model.workload import Reason, Workload, WorkloadDisk, WorkloadState
from protect.model.zone import Zone, ZoneIdMapping, ZoneSpec, ZoneState
from protect.state import records

MIB = 1 << 20
ID = UUID(int=5)

ZONE = Zone(
    ZoneSpec(
        "z1", "web", "host", "default", 256 * MIB, 2, Mode.PVH, 1, "/run/netns/x", {"net.a": "1"},
        ZoneIdMapping(65536, 1000), DomainKernel("k:1", Path("/k/image"), addons=Path("/k/addons")),
    ),
    ID, ZoneState.DEAD, 7, DomainId(3), "boot", "1.0", "crashed", 9,
)  # fmt: skip
ZONE_TEXT = (
    '{"id": "z1", "name": "web", "hostname": "host", "profile": "default", "memory_bytes": 268435456, '
    '"vcpus": 2, "mode": "pvh", "interfaces": 1, "netns": "/run/netns/x", "sysctls": {"net.a": "1"}, '
    '"id_mapping": [65536, 1000], "kernel": {"name": "k:1", "image": "/k/image", "addons": "/k/addons"}, '
    '"uuid": "00000000-0000-0000-0000-000000000005", "state": "dead", "created_at_ns": 7, "domain_id": 3, '
    '"boot_id": "boot", "agent_version": "1.0", "death_reason": "crashed", "died_at_ns": 9}'
)
NEW_ZONE = Zone(ZoneSpec("z2", "", "", "default", 1, 1, Mode.PV), ID, ZoneState.CREATING, 7)
NEW_ZONE_TEXT = (
    '{"id": "z2", "name": "", "hostname": "", "profile": "default", "memory_bytes": 1, "vcpus": 1, '
    '"mode": "pv", "interfaces": 0, "netns": "", "sysctls": {}, "id_mapping": [], "kernel": null, '
    '"uuid": "00000000-0000-0000-0000-000000000005", "state": "creating", "created_at_ns": 7, '
    '"domain_id": 0, "boot_id": "", "agent_version": "", "death_reason": "", "died_at_ns": 0}'
)
SHARED_ZONE = replace(NEW_ZONE, spec=replace(NEW_ZONE.spec, shares=CpuShares(51, 30)))
SHARED_ZONE_TEXT = NEW_ZONE_TEXT.replace('"kernel": null, ', '"kernel": null, "shares": [51, 30], ')
WORKLOAD = Workload(
    "w1", "z1", WorkloadState.EXITED, 5,
    (WorkloadDisk("xvdb", (64, 12)), WorkloadDisk("xvdc", (64, 13))), "/l/0.log",
    True, True, Streams(1, 2, 3), 77, 6, 8, 137, Reason.OOM_KILLED, "m",
)  # fmt: skip
WORKLOAD_TEXT = (
    '{"id": "w1", "zone_id": "z1", "state": "exited", "created_at_ns": 5, '
    '"disks": [["xvdb", 64, 12], ["xvdc", 64, 13]], "log_path": "/l/0.log", "tty": true, '
    '"stdin_once": true, "streams": [1, 2, 3], "pid": 77, "started_at_ns": 6, "finished_at_ns": 8, '
    '"exit_code": 137, "reason": "OOMKilled", "message": "m"}'
)
REFUSED = replace(WORKLOAD, start_error="no such command", command="nosuch")
REFUSED_TEXT = WORKLOAD_TEXT.replace('"m"}', '"m", "start_error": "no such command", "command": "nosuch"}')
NEW_WORKLOAD = Workload("w2", "z1", WorkloadState.CREATING, 5, ())
NEW_WORKLOAD_TEXT = (
    '{"id": "w2", "zone_id": "z1", "state": "creating", "created_at_ns": 5, "disks": [], "log_path": "", '
    '"tty": false, "stdin_once": false, "streams": [0, 0, 0], "pid": 0, "started_at_ns": 0, '
    '"finished_at_ns": 0, "exit_code": 0, "reason": "", "message": ""}'
)


LABELLED = replace(NEW_ZONE, spec=replace(NEW_ZONE.spec, seclabel="a:b:c"))
LABELLED_TEXT = NEW_ZONE_TEXT.replace('"kernel": null, ', '"kernel": null, "seclabel": "a:b:c", ')

CAPABLE = replace(NEW_ZONE, file_volumes=True, anonymous_volumes=True, resizes=True)
CAPABLE_TEXT = NEW_ZONE_TEXT.replace(
    '"died_at_ns": 0', '"died_at_ns": 0, "file_volumes": true, "anonymous_volumes": true, "resizes": true'
)


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (CAPABLE, CAPABLE_TEXT),
        (ZONE, ZONE_TEXT),
        (NEW_ZONE, NEW_ZONE_TEXT),
        (LABELLED, LABELLED_TEXT),
        (SHARED_ZONE, SHARED_ZONE_TEXT),
    ],
)
def test_a_zone_keeps_its_record(zone: Zone, text: str) -> None:
    assert json.dumps(records.of_zone(zone)) == text
    assert records.zone(json.loads(text)) == zone


@pytest.mark.parametrize(
    ("workload", "text"),
    [(WORKLOAD, WORKLOAD_TEXT), (REFUSED, REFUSED_TEXT), (NEW_WORKLOAD, NEW_WORKLOAD_TEXT)],
)
def test_a_workload_keeps_its_record(workload: Workload, text: str) -> None:
    assert json.dumps(records.of_workload(workload)) == text
    assert records.workload(json.loads(text)) == workload


def test_missing_keys_have_defaults() -> None:
    body = json.loads(NEW_ZONE_TEXT)
    for key in ("netns", "id_mapping", "kernel"):
        del body[key]
    assert records.zone(body) == NEW_ZONE


def test_keys_of_a_later_version_are_ignored() -> None:
    assert records.zone(json.loads(ZONE_TEXT) | {"colour": "red"}) == ZONE
    assert records.workload(json.loads(WORKLOAD_TEXT) | {"colour": "red"}) == WORKLOAD


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"vcpus": "2"}, "read state zone z1: key 'vcpus': want an integer, got a string"),
        ({"vcpus": True}, "key 'vcpus': want an integer, got true or false"),
        ({"state": "odd"}, "key 'state': 'odd' is not one of 'creating', 'running', 'dead', 'destroying'"),
        ({"uuid": "odd"}, "key 'uuid': 'odd' is not a UUID"),
        ({"sysctls": {"net.a": 1}}, "key 'sysctls.net.a': want a string, got an integer"),
        ({"id_mapping": [1]}, "key 'id_mapping': want 2 items, got 1"),
        ({"id_mapping": [1, "2"]}, "key 'id_mapping.length': want an integer, got a string"),
        ({"kernel": {"name": "k"}}, "key 'kernel.image' is missing"),
    ],
)
def test_an_impossible_zone_is_refused(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(Broken) as caught:
        records.zone(json.loads(ZONE_TEXT) | changes)
    assert str(caught.value).endswith(cause)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"pid": 1.5}, "read state workload w1: key 'pid': want an integer, got a number"),
        ({"streams": [1, 2]}, "key 'streams': want 3 items, got 2"),
        ({"disks": [["xvdb", 1, 2], ["xvdc", 1]]}, "key 'disks[1]': want 3 items, got 2"),
        ({"disks": [["xvdb", 1, "2"]]}, "key 'disks[0]': want an integer, got a string"),
        ({"reason": "Boredom"}, "key 'reason': 'Boredom' is not one of 'Completed', "),
    ],
)
def test_an_impossible_workload_is_refused(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(Broken) as caught:
        records.workload(json.loads(WORKLOAD_TEXT) | changes)
    assert cause in str(caught.value)


def test_a_record_without_a_key_is_an_error() -> None:
    body = json.loads(WORKLOAD_TEXT)
    del body["zone_id"]
    with pytest.raises(Broken, match="read state workload w1: key 'zone_id' is missing"):
        records.workload(body)
