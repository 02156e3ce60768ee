"""Our contracts are ``xenpod_proto``; no import confuses them with a package ``proto`` (ADR 1)."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import xenpod_proto

ROOT = Path(__file__).resolve().parents[2]
# From the checkout's root, where our directory can pass for a namespace package.
_PROBE = """
try:
    import proto.xenpod_proto
except ImportError as error:
    print("refused:", error)
"""


def test_ours_comes_from_this_checkout() -> None:
    assert Path(xenpod_proto.__file__).parent == ROOT / "proto" / "xenpod_proto"


def test_nothing_installed_claims_our_name() -> None:
    assert set(packages_distributions().get("xenpod_proto", [])) <= {"xenpod"}


def test_import_proto_never_gives_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("refused:")


def test_a_foreign_proto_is_not_in_our_way(tmp_path: Path) -> None:
    """With a package ``proto`` in front of everything, ours is still found, and is ours."""
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "__init__.py").write_text("foreign = True\n")
    probe = (
        "import sys; sys.path.insert(0, sys.argv[1]); import proto;"
        "from xenpod_proto.cri.v1 import runtime_pb2;"
        "print(proto.foreign, runtime_pb2.VersionRequest.DESCRIPTOR.full_name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "runtime.v1.VersionRequest"]


def test_our_directory_is_no_package() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()
