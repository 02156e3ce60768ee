"""CRI v1 whole: our descriptors against the published field tables (cri-runtime-v1.json)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import descriptors
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc

TABLES = json.loads((Path(__file__).parent / "cri-runtime-v1.json").read_text())
FILE = runtime_pb2.DESCRIPTOR


def test_package_and_syntax_equal_the_tables() -> None:
    assert FILE.package == TABLES["package"]
    assert descriptors.syntax(FILE) == TABLES["syntax"]


def test_every_message_equals_the_tables_field_by_field() -> None:
    theirs = descriptors.wanted(TABLES)
    assert len(theirs) > 190
    assert descriptors.messages(FILE) == theirs


def test_no_field_is_in_a_oneof_or_optional() -> None:
    """The tables have no word for descriptors, therefore CRI v1 has none."""
    assert [message.full_name for message in descriptors.every_message(FILE) if message.oneofs] == []


def test_every_enum_equals_the_tables_value_by_value() -> None:
    assert descriptors.enums(FILE) == TABLES["enums"]


def test_every_rpc_equals_the_tables() -> None:
    ours = descriptors.services(FILE)
    assert ours == TABLES["services"]
    assert sum(map(len, ours.values())) == 41


def test_the_generated_servicers_have_every_rpc() -> None:
    for name, rpcs in TABLES["services"].items():
        servicer = getattr(runtime_pb2_grpc, f"{name}Servicer")
        assert [rpc["rpc"] for rpc in rpcs if not hasattr(servicer, rpc["rpc"])] == []
