"""Runs a program of the tests again within dom0, on a new machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.xen import machine, prepare
from tests.xen.qemu import Size


def run_module(name: str, *arguments: str, deadline: float, size: Size | None = None) -> int:
    """``python -m <name>`` in dom0: its exit status; 1 after ``deadline`` seconds."""
    prepare.guest_parts()
    command = [sys.executable, "-m", name, *arguments]
    with tempfile.TemporaryDirectory(prefix="xenpod-nested-") as folder:
        outcome = machine.run(command, folder=Path(folder), deadline=deadline, size=size)
    return 1 if outcome.status is None else outcome.status
