"""tests/conformance calls every RPC of CRI v1, on both toolstacks."""

from __future__ import annotations

import ast
from pathlib import Path

from xenpod_proto.cri.v1 import runtime_pb2 as cri

ROOT = Path(__file__).parents[2]
SUITE = (
    *(ROOT / "tests" / "conformance").glob("*.py"),
    ROOT / "tests/support/cri/conformance.py",
    ROOT / "tools/localnode/cri_client.py",
)


def called(path: Path) -> set[str]:
    """Names of the methods that a file calls."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}


def test_every_rpc_is_called() -> None:
    services = cri.DESCRIPTOR.services_by_name.values()
    rpcs = {method.name for service in services for method in service.methods}
    assert len(rpcs) == 41
    # a streaming RPC's stub also has a plain name
    assert rpcs - set().union(*map(called, SUITE)) == set()
