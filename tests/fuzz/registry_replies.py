"""Fuzzes all data that a registry, or a worker with a registry, can send to the daemon and its workers.

The properties are the tests' own. Each property has its share of the time, and new random seeds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import seed

from tests.unit.images.registry import test_exchange as exchange
from tests.unit.images.registry import test_manifests as manifests
from tests.unit.images.registry import test_reading_fuzz as documents
from tests.unit.images.registry.conversation import test_challenge as challenge

PROPERTIES: tuple[Callable[..., None], ...] = (
    challenge.test_any_header_gives_tokens_as_names,
    manifests.test_any_document_is_read_or_refused,
    documents.test_mangled_documents_are_read_or_refused,
    documents.test_any_image_configuration_can_be_listed,
    documents.test_mangled_hosts_file_is_read_or_refused,
    exchange.test_any_answer_of_a_worker_is_a_value_or_a_fault,
    exchange.test_any_answer_to_a_question_is_bytes_or_a_fault,
    exchange.test_facts_of_any_bytes_are_values_or_refused,
)
_WITH_FOLDER = documents.test_mangled_hosts_file_is_read_or_refused


def main(seconds: float) -> None:
    """Raises the exception of a property, after hypothesis has made its example small."""
    for tried in PROPERTIES:
        until, rounds = time.monotonic() + seconds / len(PROPERTIES), 0
        while time.monotonic() < until:
            _once(tried)
            rounds += 1
        sys.stdout.write(f"{tried.__name__}: {rounds} rounds of its examples\n")


def _once(tried: Callable[..., None]) -> None:
    work = seed(time.time_ns())(tried)
    if tried is _WITH_FOLDER:
        with tempfile.TemporaryDirectory() as folder:
            work(tmp_path=Path(folder))
    else:
        work()
