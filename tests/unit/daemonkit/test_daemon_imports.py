"""Large libraries: a daemon loads them only for work with them; and their log lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_libraries_are_quiet_even_when_loaded_later() -> None:
    code = """
import logging
from daemonkit import logs
logs.setup("debug")
logging.getLogger("pyroute2").setLevel(0)
for name in ("pyroute2", "urllib3.connectionpool", "oras.logger", "zone"):
    logging.getLogger(name).info("chat of %s", name)
    logging.getLogger(name).warning("trouble of %s", name)
import pyroute2
logging.getLogger("pyroute2").info("late chat")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    messages = [text.partition(": ")[2] for text in done.stderr.splitlines()]
    assert messages == [
        "trouble of pyroute2",
        "trouble of urllib3.connectionpool",
        "trouble of oras.logger",
        "chat of zone",
        "trouble of zone",
    ]


def test_repeated_messages_of_a_library_are_logged_once() -> None:
    code = """
import logging
from daemonkit import logs
logs.setup("debug")
exporter = logging.getLogger("opentelemetry.exporter.otlp")
for _ in range(3):
    exporter.info("sent")
    exporter.warning("the collector is away")
logging.getLogger("opentelemetry.sdk").warning("the queue is full")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    messages = [text.partition(": ")[2] for text in done.stderr.splitlines()]
    assert messages == ["the collector is away", "the queue is full"]


@pytest.mark.parametrize(
    ("program", "late"),
    [
        ("protect", {"rich", "cffi", "xenbind", "opentelemetry"}),
        ("cri", {"pyroute2", "rich", "cffi", "opentelemetry"}),
    ],
)
def test_an_idle_daemon_loads_no_large_library(program: str, late: set[str]) -> None:
    # An idle protectd of a test also loads the adapter of its toolstack.
    code = f"import sys, {program}.__main__\nif {program!r} == 'protect': import protect.toolstack.fake\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert f"{program}.__main__" in loaded
    assert loaded & late == set()
