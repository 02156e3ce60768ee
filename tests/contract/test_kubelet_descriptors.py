"""The kubelet's own APIs: our descriptors against the published field tables (tests/data/kubelet)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from tests.support import descriptors
from xenpod_proto.kubelet import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    registration_pb2,
)

DATA = Path(__file__).parents[1] / "data/kubelet"
FILES = {
    "kubelet-dra-v1": dra_v1_pb2.DESCRIPTOR,
    "kubelet-dra-v1beta1": dra_v1beta1_pb2.DESCRIPTOR,
    "kubelet-dra-health-v1": health_v1_pb2.DESCRIPTOR,
    "kubelet-dra-health-v1alpha1": health_v1alpha1_pb2.DESCRIPTOR,
    "kubelet-pluginregistration-v1": registration_pb2.DESCRIPTOR,
}


def test_every_table_has_its_file() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == set(FILES)


@pytest.mark.parametrize(("name", "file"), FILES.items(), ids=FILES)
def test_descriptors_match_the_published_api(name: str, file: FileDescriptor) -> None:
    tables = json.loads((DATA / f"{name}.json").read_text())
    assert (file.package, descriptors.syntax(file)) == (tables["package"], tables["syntax"])
    assert descriptors.messages(file) == descriptors.wanted(tables)
    assert descriptors.enums(file) == tables["enums"]
    assert descriptors.services(file) == tables["services"]
